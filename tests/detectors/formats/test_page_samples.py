"""The few samples of a metrics page that are asked for."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from detectors.formats.page_samples import read_samples

PAGE = r"""# HELP rankmend_a x
rankmend_a{x="1",y="a \"b\" \\ c\nd}"} 1
rankmend_ab{x="2"} 2
rankmend_a{x="3"} +Inf 1700000000000
rankmend_a{x="4"} what
rankmend_a{} 5e-1
rankmend_a 6
rankmend_a{x="7"
rankmend_b{x="8"} 8
"""


def test_samples_of_the_metrics_that_are_asked_for_are_read() -> None:
    *found, strange, plain = read_samples(PAGE, ["rankmend_a"])

    assert found == [
        ("rankmend_a", {"x": "1", "y": 'a "b" \\ c\nd}'}, 1.0),
        ("rankmend_a", {"x": "3"}, math.inf),
    ]
    assert strange[1] == {"x": "4"}
    assert math.isnan(strange[2])
    assert plain == ("rankmend_a", {}, 0.5)


def test_words_without_end_are_read_in_a_time_that_grows_with_their_number() -> None:
    page = 'rankmend_a{x="1",' + "a" * 300_000 + "} 1\n"  # hours, if it grew with the square

    ((_name, labels, _value),) = read_samples(page, ["rankmend_a"])

    assert labels == {"x": "1"}


@given(st.text(max_size=40), st.floats(allow_nan=False))
def test_what_a_client_of_prometheus_writes_is_read_back(label: str, value: float) -> None:
    registry = CollectorRegistry()
    Gauge("rankmend_a", "x", ["y"], registry=registry).labels(y=label).set(value)
    try:
        page = generate_latest(registry).decode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return

    assert list(read_samples(page, ["rankmend_a"])) == [("rankmend_a", {"y": label}, value)]
