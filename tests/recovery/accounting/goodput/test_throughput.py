"""Throughput, MFU and linearity, and the peaks that MFU is of."""

from pathlib import Path

import pytest

from recovery.accounting.goodput.job_time import JobTime, WorkTime
from recovery.accounting.goodput.peaks import PEAKS, peak_flops_per_s, peak_of
from recovery.accounting.goodput.throughput import SizeRate, throughput_by_name, throughput_of
from recovery.journal.attempt_records import WorkSeen
from tests.support.goodput_jobs import BEGIN, time_of

H100 = "NVIDIA H100 80GB HBM3"


def job(*work: WorkTime, name: str = "llama") -> JobTime:
    return JobTime("id", name, 0.0, (), (), (), (), work)


def work(  # 10 s
    ranks: int, *, flops: float = 0.0, tokens: float = 0.0, device: str = H100, kind: str = "bf16"
) -> WorkTime:
    return WorkTime(100.0, 110.0, ranks, flops, tokens, 0.0, kind, device)


def test_work_is_dated_by_its_age() -> None:
    seen = WorkSeen(1, 20.0, 5.0, 4, 1e15, 4e6, 0.0, "bf16", H100)

    (found,) = time_of(*BEGIN, (60.0, seen)).work

    assert (found.begin_s, found.end_s, found.device_s) == (35.0, 55.0, 80.0)


def test_mfu_is_the_share_of_the_dense_peak() -> None:
    found = throughput_of([job(work(8, flops=0.4 * 989.5e12 * 8 * 10, tokens=8e6))])

    assert found is not None
    assert found.mfu_ratio == pytest.approx(0.4)
    assert found.tokens_per_s == 8e5
    assert found.samples_per_s is None


@pytest.mark.parametrize(
    "one",
    [
        work(8, tokens=8e6),  # no FLOPs
        work(8, flops=1e15, device=""),
        work(8, flops=1e15, device="Graphics 9000"),
        work(8, flops=1e15, kind="fp4"),  # none of an H100
    ],
)
def test_without_flops_or_a_known_peak_there_is_no_mfu(one: WorkTime) -> None:
    found = throughput_of([job(work(8, flops=1e15), one)] if one.flops else [job(one)])

    assert found is not None
    assert found.mfu_ratio is None


def test_linearity_compares_with_the_smallest_size_of_that_name() -> None:
    jobs = [
        job(work(8, tokens=8_000.0), work(16, tokens=15_200.0)),
        job(work(32, tokens=28_800.0)),
        job(work(4, tokens=1.0), name="other"),
    ]

    found = throughput_by_name(jobs)["llama"]

    assert found.unit == "tokens"
    assert found.sizes == (
        SizeRate(8, 100.0, 1.0),
        SizeRate(16, 95.0, 0.95),
        SizeRate(32, 90.0, 0.9),
    )


def test_linearity_compares_no_sizes_of_other_accelerators_or_data_types() -> None:
    jobs = [job(work(8, tokens=8_000.0), work(16, tokens=15_200.0))]
    jobs += [job(work(4, tokens=9e9, device="NVIDIA A100")), job(work(2, tokens=9e9, kind="fp8"))]

    assert [
        (one.devices, one.linearity_ratio) for one in throughput_by_name(jobs)["llama"].sizes
    ] == [
        (8, 1.0),
        (16, 0.95),
    ]


def test_no_work_gives_no_throughput() -> None:
    assert throughput_of([job()]) is None
    assert throughput_by_name([job()]) == {}


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (H100, "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA L40", None),
        ("", None),
    ],
)
def test_a_device_is_known_by_the_drivers_name(device: str, name: str | None) -> None:
    found = peak_of(device)

    assert (None if found is None else found.name) == name


def test_documented_peaks_are_those_of_the_table() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/goodput.md").read_text()
    for peak in PEAKS:
        row = next(line for line in page.splitlines() if line.startswith(f"| {peak.name} |"))
        shown = [float(cell) for cell in row.split("|")[2:8] if cell.strip()]
        order = ("fp64", "fp32", "tf32", "bf16", "fp8", "fp4")
        told = [peak.flops_per_s[kind] / 1e12 for kind in order if kind in peak.flops_per_s]
        assert shown == told
        assert peak.source in row
        assert (peak.checked or "**not checked**") in row


def test_each_peak_has_a_source_and_no_type_beats_a_narrower_one() -> None:
    order = ("fp64", "fp32", "tf32", "bf16", "fp8", "fp4")
    for peak in PEAKS:
        assert "data sheet" in peak.source
        known = [peak.flops_per_s[kind] for kind in order if kind in peak.flops_per_s]
        assert known == sorted(known), peak.name
        assert peak.flops_per_s["fp16"] == peak.flops_per_s["bf16"]
    assert peak_flops_per_s(H100, "bf16") == 989.5e12
