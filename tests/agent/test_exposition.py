"""The page /metrics: the same bytes as prometheus-client writes, and made only once."""

import gzip
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from agent.assembly.families import FAMILIES
from agent.metrics import Metric
from agent.page.application import make_metrics_app, make_registry
from agent.page.exposition import Exposition
from agent.sampling.collection import NO_ANSWER, CollectorAnswer, CollectorOutcome, CollectorView
from agent.sampling.runner import page_metrics, runner_metrics
from tests.support.agent import PATIENT, answer_of

OWN = [family for name, family in FAMILIES.items() if not name.startswith("rankmend_collector_")]
# -0.0 equals 0.0 and may be written as the one before it
VALUES = st.floats().map(lambda value: value + 0.0) | st.integers(-(10**20), 10**20) | st.booleans()
PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def view_of(
    *metrics: Metric, name: str = "all", before: CollectorAnswer = NO_ANSWER
) -> CollectorView:
    answer = answer_of(metrics, before)
    return CollectorView(
        name, 1.0, CollectorOutcome.MEASURED, "", 0.5, 0.1, None, 0.5, 0, False, answer
    )


class Node:
    """A node whose answers and clock the test sets."""

    def __init__(self, *views: CollectorView) -> None:
        self.views = list(views)
        self.time_s = 100.0
        self.exposition = Exposition(
            lambda: self.views, runner_metrics, lambda: self.time_s, FAMILIES
        )

    def text(self) -> str:
        return self.exposition.page(openmetrics=False, compressed=False).decode()


@st.composite
def metrics(draw: st.DrawFn) -> list[Metric]:
    chosen = draw(st.lists(st.sampled_from(OWN), max_size=12, unique=True))
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    return [
        Metric(family.name, draw(VALUES), tuple((label, draw(text)) for label in family.labels))
        for family in chosen
    ]


@PATIENT
@given(metrics(), metrics())
def test_page_is_byte_for_byte_what_prometheus_client_writes(
    one: list[Metric], other: list[Metric]
) -> None:
    node = Node(view_of(*one, name="one"), view_of(*other, name="other"))
    registry = make_registry(lambda: node.views, FAMILIES)

    plain = node.exposition.page(openmetrics=False, compressed=False)
    openmetrics = node.exposition.page(openmetrics=True, compressed=False)

    assert plain == generate_latest(registry)
    assert openmetrics == generate_openmetrics(registry)


@PATIENT
@given(metrics(), st.data())
def test_page_after_other_answers_is_what_prometheus_client_writes_of_the_last(
    first: list[Metric], data: st.DataObject
) -> None:
    node = Node(view_of(*first))
    node.text()
    kept = [data.draw(st.booleans()) for _metric in first]
    values = [data.draw(VALUES) for _metric in first]
    second = [
        metric if is_kept else metric._replace(value=value)
        for metric, is_kept, value in zip(first, kept, values, strict=True)
    ]
    for answer in (second, data.draw(metrics()), second[::-1], first):
        node.views = [view_of(*answer, before=node.views[0].answer)]

        assert node.text().encode() == generate_latest(make_registry(lambda: node.views, FAMILIES))


def gpu_answer(*places: tuple[str, str, str], temperatures: float = 45.0) -> list[Metric]:
    """Return the answer of two GPUs, of which so many know their chassis, slot and tray."""
    found = []
    for number in range(2):
        gpu = (
            ("gpu", str(number)),
            ("uuid", f"GPU-{number}"),
            ("pci_bus_id", f"0000:0{number}:00.0"),
        )
        found.append(Metric("rankmend_gpu_temperature_celsius", temperatures, gpu))
        found.append(Metric("rankmend_gpu_nvlink_up", 1, (*gpu, ("link", "0"))))
        if number < len(places):
            place = zip(("chassis", "slot", "tray"), places[number], strict=True)
            labels = (*gpu, *place, ("host", "1"), ("module", "1"))
            found.append(Metric("rankmend_gpu_platform_info", 1, labels))
    return found


def test_each_series_of_a_gpu_has_its_chassis_slot_and_tray_once_they_are_known() -> None:
    node = Node(
        view_of(*gpu_answer(), name="gpu"),
        view_of(Metric("rankmend_gpu_lost", 0, gpu_answer()[0].labels), name="gpu_state"),
    )
    unplaced = node.text()
    node.time_s += 60.0
    node.views[0] = view_of(
        *gpu_answer(("1821325191344", "7", "3")), name="gpu", before=node.views[0].answer
    )

    text = node.text()

    assert "chassis" not in unplaced
    for line in (
        'rankmend_gpu_temperature_celsius{chassis="1821325191344",gpu="0",pci_bus_id="0000:00:00.0",slot="7",tray="3",uuid="GPU-0"} 45.0',
        'rankmend_gpu_nvlink_up{chassis="1821325191344",gpu="0",link="0",pci_bus_id="0000:00:00.0",slot="7",tray="3",uuid="GPU-0"} 1.0',
        'rankmend_gpu_lost{chassis="1821325191344",gpu="0",pci_bus_id="0000:00:00.0",slot="7",tray="3",uuid="GPU-0"} 0.0',
        'rankmend_gpu_temperature_celsius{gpu="1",pci_bus_id="0000:01:00.0",uuid="GPU-1"} 45.0',
    ):
        assert line in text.splitlines()
    assert text.encode() == generate_latest(make_registry(lambda: node.views, FAMILIES))


def test_series_keep_their_place_in_the_rack_when_the_driver_no_longer_names_it() -> None:
    place = ("1821325191344", "7", "3")
    node = Node(view_of(*gpu_answer(place, place), name="gpu"))
    node.text()
    node.time_s += 60.0
    node.views = [view_of(*gpu_answer(temperatures=46.0), name="gpu", before=node.views[0].answer)]

    lines = node.text().splitlines()

    assert [line for line in lines if line.endswith(" 46.0") and 'tray="3"' not in line] == []
    assert len([line for line in lines if line.endswith(" 46.0")]) == 2


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1, "1.0"),
        (0.1, "0.1"),
        (999_999, "999999.0"),
        (1_000_000, "1e+06"),
        (-1_000_000, "-1000000.0"),
        (1e-7, "1e-07"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_value_is_written_as_prometheus_reads_it(value: float, written: str) -> None:
    node = Node(view_of(Metric("rankmend_host_cpus", value)))

    assert f"\nrankmend_host_cpus {written}\n" in node.text()


def test_page_is_made_once_for_all_who_ask_for_the_same_answers() -> None:
    node = Node(view_of(Metric("rankmend_host_cpus", 8)))

    first = node.exposition.page(openmetrics=True, compressed=True)
    node.time_s += 0.9
    second = node.exposition.page(openmetrics=True, compressed=True)

    assert second is first
    assert gzip.decompress(first).endswith(b"# EOF\n")


def test_new_answer_is_on_the_page_at_once() -> None:
    node = Node(view_of(Metric("rankmend_host_cpus", 8)))
    node.text()

    node.views = [view_of(Metric("rankmend_host_cpus", 6))]

    assert "rankmend_host_cpus 6.0" in node.text()


def test_collector_that_turned_stale_is_off_the_page_at_once() -> None:
    node = Node(view_of(Metric("rankmend_host_cpus", 8)))
    node.text()

    node.views = [node.views[0]._replace(is_stale=True, answer=NO_ANSWER)]

    assert "rankmend_host_cpus" not in node.text()
    assert 'rankmend_collector_stale{collector="all"} 1.0' in node.text()


def test_failure_of_a_collector_is_on_the_page_at_once() -> None:
    node = Node(view_of())
    node.text()

    node.views = [node.views[0]._replace(outcome=CollectorOutcome.BROKEN, failures=1)]

    assert 'rankmend_collector_success{collector="all"} 0.0' in node.text()


def test_ages_are_at_most_a_second_too_young() -> None:
    node = Node(view_of())
    node.text()

    node.views = [node.views[0]._replace(age_s=1.5)]  # the same answer, a second later
    node.time_s += 1.0

    assert 'rankmend_collector_age_seconds{collector="all"} 1.5' in node.text()


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (PROMETHEUS_ACCEPT, True),
        ("text/plain;version=0.0.4", False),
        ("*/*", False),
        ("", False),
        ("application/openmetrics-text;q=0,text/plain", False),
        ("text/plain;q=1,application/openmetrics-text;q=0.1", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; Q=0.5, */*;q=0.1", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=none,text/*;q=0.2", True),
    ],
)
def test_prometheus_gets_openmetrics_and_others_the_text_format(
    accept: str, expected: bool
) -> None:
    _status, headers, _body = page_for(HTTP_ACCEPT=accept)

    assert headers["Content-Type"].startswith("application/openmetrics-text") is expected
    assert headers["Vary"] == "Accept, Accept-Encoding"


@pytest.mark.parametrize(
    ("encodings", "expected"),
    [
        ("gzip", True),
        ("gzip;q=0, identity", False),
        ("gzip;q=0", False),
        ("GZIP;q=0.5, identity;q=0.4", True),
        ("gzip;q=0.5, identity", False),
        ("*", True),
        ("*;q=0", False),
        ("br, deflate", False),
        ("x-gzip", True),
        ("", False),
    ],
)
def test_page_is_compressed_for_who_accepts_it_and_likes_it_as_much(
    encodings: str, expected: bool
) -> None:
    _status, headers, body = page_for(HTTP_ACCEPT_ENCODING=encodings)
    _status, some_headers, some = page_for(
        HTTP_ACCEPT_ENCODING=encodings, QUERY_STRING="name[]=rankmend_host_cpus"
    )

    assert (headers.get("Content-Encoding") == "gzip") is expected
    assert (body[:2] == b"\x1f\x8b") is expected
    assert (some_headers.get("Content-Encoding") == "gzip") is expected
    assert (some[:2] == b"\x1f\x8b") is expected
    assert some_headers["Vary"] == "Accept, Accept-Encoding"


def test_head_has_the_headers_of_the_page_and_no_body() -> None:
    _status, page_headers, page = page_for()
    status, headers, body = page_for(REQUEST_METHOD="HEAD")

    assert (status, body) == ("200 OK", b"")
    assert headers == page_headers
    assert headers["Content-Length"] == str(len(page))


def page_for(**environ: str) -> tuple[str, dict[str, str], bytes]:
    view = view_of(Metric("rankmend_host_cpus", 8), Metric("rankmend_host_swap_size_bytes", 0))
    app = make_metrics_app(lambda: [view], lambda: 100.0, FAMILIES)
    answered: list[tuple[str, list[tuple[str, str]]]] = []
    request = {"PATH_INFO": "/metrics", "REQUEST_METHOD": "GET", **environ}
    body = b"".join(app(request, lambda status, headers: answered.append((status, headers))))
    return answered[0][0], dict(answered[0][1]), body


def test_answer_to_prometheus_is_compressed_and_says_so() -> None:
    status, headers, body = page_for(HTTP_ACCEPT=PROMETHEUS_ACCEPT, HTTP_ACCEPT_ENCODING="gzip")

    assert status == "200 OK"
    assert headers["Content-Encoding"] == "gzip"
    assert headers["Content-Length"] == str(len(body))
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert b"\nrankmend_host_cpus 8.0\n" in gzip.decompress(body)


def test_query_for_some_names_is_answered_by_the_library() -> None:
    status, _headers, body = page_for(QUERY_STRING="name[]=rankmend_host_cpus")

    assert status == "200 OK"
    assert b"rankmend_host_cpus 8.0" in body
    assert b"swap_size" not in body


def test_other_methods_than_get_are_refused() -> None:
    status, headers, _body = page_for(REQUEST_METHOD="DELETE")

    assert status.startswith("405")
    assert headers["Allow"] == "GET, HEAD, OPTIONS"


def test_page_says_nothing_of_a_collector_whose_source_is_absent_unless_it_hangs() -> None:
    absent = view_of(name="md")._replace(outcome=CollectorOutcome.ABSENT)

    for views, expected in ([absent], False), ([absent._replace(is_stale=True)], True):
        exposition = Exposition(lambda views=views: views, page_metrics, lambda: 1.0, FAMILIES)
        text = exposition.page(openmetrics=False, compressed=False).decode()
        assert ('collector="md"' in text) is expected
