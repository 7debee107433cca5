"""What is kept of an agent's page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.families import FAMILIES
from rankmend.errors import SourceError
from recovery.accounting.readings.reading import METRICS, SAMPLES_MAX, Sample, pick_samples

GPU = 'gpu="3",uuid="GPU-5f",pci_bus_id="0000:4b:00.0"'


def test_every_kept_metric_is_one_of_the_agent() -> None:
    assert FAMILIES.keys() >= METRICS


def test_known_metrics_are_kept_with_their_device_and_others_are_not() -> None:
    page = (
        "# HELP rankmend_host_cpus CPUs\n"
        "# TYPE rankmend_host_cpus gauge\n"
        "rankmend_host_cpus 8\n"
        f"rankmend_gpu_temperature_celsius{{{GPU}}} 83\n"
        'node_load1{instance="x"} 3\n'
        "rankmend_agent_threads 7\n"
    )

    samples, is_cut = pick_samples(page.encode(), "n1")

    assert samples == (
        Sample("rankmend_host_cpus", 8.0),
        Sample(
            "rankmend_gpu_temperature_celsius",
            83.0,
            "GPU-5f",
            {"gpu": "3", "pci_bus_id": "0000:4b:00.0"},
        ),
    )
    assert not is_cut


def test_hostile_labels_are_bounded_and_printable() -> None:
    text = "<script>alert(1)</script>\u202e\x1b[2J" + "A" * 500
    page = f'rankmend_gpu_success{{uuid="{text}",model="{text}",evil="x"}} 1\n'

    ((sample,), _is_cut) = pick_samples(page.encode(), "n1")

    assert len(sample.device) == 100
    assert sample.labels.keys() == {"model"}
    assert "\x1b" not in sample.device
    assert "\u202e" not in sample.device


def test_page_with_too_many_series_or_endless_lines_is_cut() -> None:
    many = "".join(
        f'rankmend_gpu_success{{uuid="{number}"}} 1\n' for number in range(SAMPLES_MAX + 1)
    )
    long = 'rankmend_gpu_success{uuid="' + "A" * 5000 + '"} 1\nrankmend_host_cpus 8\n'

    samples, is_cut = pick_samples(many.encode(), "n1")
    assert (len(samples), is_cut) == (SAMPLES_MAX, True)
    assert pick_samples(long.encode(), "n1") == ((Sample("rankmend_host_cpus", 8.0),), True)


def test_page_of_many_long_lines_is_read_to_its_bound() -> None:
    """`rankmend_gpu_info` with 480 labels in each of 2,000 lines kept a thread busy for 12 s."""
    line = "rankmend_gpu_success{" + ",".join(f'l{n}="b"' for n in range(200)) + "} 1\n"

    samples, is_cut = pick_samples((line * SAMPLES_MAX).encode(), "n1")

    assert is_cut
    assert len(samples) <= 512 * 1024 // len(line) + 1


@pytest.mark.parametrize(
    "labels", [",".join(f'a{n}="b"' for n in range(17)), 'a="' + "\\\\" * 33 + '"']
)
def test_line_that_costs_the_parser_much_is_left_out(labels: str) -> None:
    page = f'rankmend_gpu_lost{{gpu="a"}} 1\nrankmend_gpu_lost{{{labels}}} 1\n'.encode()

    samples, is_cut = pick_samples(page, "n1")

    assert [sample.metric for sample in samples] == ["rankmend_gpu_lost"]
    assert is_cut


def test_values_that_are_no_numbers_are_left_out() -> None:
    page = b"rankmend_host_cpus NaN\nrankmend_host_tasks_blocked +Inf\nrankmend_host_uptime_seconds 5\n"

    assert pick_samples(page, "n1")[0] == (Sample("rankmend_host_uptime_seconds", 5.0),)


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"<html>not an agent</html>", "no metrics of a rankmend agent"),
        (b"", "no metrics of a rankmend agent"),
        (b"rankmend_host_cpus eight\n", "not a page of metrics"),
        (b'rankmend_host_cpus{a="b 8\n', "not a page of metrics"),
        (b"rankmend_host_cpus " + 1900 * b"1" + b"\n", "not a page of metrics"),
        (b"\n" * 100_001, "100001 lines, and at most 100000 are read"),
    ],
)
def test_page_of_something_else_is_refused_with_a_reason(page: bytes, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        pick_samples(page, "n1")


@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda text: f"rankmend_host_cpus{text}".encode(errors="replace")))  # fmt: skip
def test_any_page_gives_samples_or_a_source_error(page: bytes) -> None:
    try:
        samples, _is_cut = pick_samples(page, "n1")
    except SourceError:
        return
    assert all(sample.metric in METRICS for sample in samples)
