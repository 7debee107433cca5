"""Answers of collectors: what has changed since which revision, as those see it who read answers."""

from hypothesis import example, given
from hypothesis import strategies as st

from agent.findings.snapshot import SeenAnswers, make_snapshot
from agent.metrics import Metric
from agent.sampling.collection import NO_ANSWER, CollectorOutcome, CollectorView, Revision, revise
from tests.support.agent import PATIENT

ONE, TWO, THREE = (Metric("rankmend_disk_size_bytes", 1, (("device", d),)) for d in "abc")
SERIES = st.builds(
    Metric,
    st.sampled_from(["rankmend_a", "rankmend_b", "rankmend_c"]),
    st.integers(0, 2),
    st.sampled_from([(("device", "x"),), (("device", "y"),)]),
)
ANSWERS = st.lists(
    st.lists(SERIES, max_size=6, unique_by=lambda series: (series.name, series.labels)), max_size=6
)


def test_answer_with_equal_samples_keeps_its_revision() -> None:
    first = revise(NO_ANSWER, (ONE, TWO), Revision(1))

    second = revise(first, (ONE._replace(), TWO._replace()), Revision(2))

    assert second is first
    assert (first.revision, first.layout) == (1, 1)


def test_changed_value_is_newer_and_the_layout_stays() -> None:
    first = revise(NO_ANSWER, (ONE, TWO, THREE), Revision(1))

    second = revise(first, (ONE, TWO._replace(value=5), THREE), Revision(2))

    assert (second.revision, second.layout, list(second.changed_at)) == (2, 1, [1, 2, 1])
    assert list(first.changed_at) == [1, 1, 1]  # what somebody has read stays as it was


def test_other_labels_order_or_number_of_series_is_a_new_layout() -> None:
    first = revise(NO_ANSWER, (ONE, TWO), Revision(1))

    for metrics in ((ONE, THREE), (TWO, ONE), (ONE,), (ONE, TWO, THREE), ()):
        second = revise(first, metrics, Revision(2))

        assert (second.metrics, second.revision, second.layout) == (metrics, 2, 2)


def test_collector_without_any_series_is_as_before_its_first_answer() -> None:
    assert revise(NO_ANSWER, (), Revision(1)) is NO_ANSWER


def view_of(answer: object) -> CollectorView:
    return CollectorView(
        "x", 1.0, CollectorOutcome.MEASURED, "", 0.0, 0.1, None, 0.0, 0, False, answer
    )  # type: ignore[arg-type]


@PATIENT
@given(ANSWERS)
@example([[ONE], [ONE._replace(value=5)]])  # within one tick of the clock
def test_snapshot_that_passes_over_what_is_unchanged_equals_one_made_afresh(
    answers: list[list[Metric]],
) -> None:
    seen = SeenAnswers()
    answer, revisions = NO_ANSWER, {}
    before: dict[str, list[object]] = {}
    for number, metrics in enumerate(answers, start=1):
        answer = revise(answer, tuple(metrics), Revision(number))

        snapshot = make_snapshot([view_of(answer)], 1.0, seen, "findings")
        kept = snapshot.readings
        fresh = make_snapshot([view_of(answer)], 1.0, SeenAnswers(), "findings").readings

        assert {name: list(reading.series) for name, reading in kept.items()} == {
            name: list(reading.series) for name, reading in fresh.items()
        }
        now = {name: list(reading.series) for name, reading in kept.items()}
        told = {name for name in now | before if now.get(name) != before.get(name)}
        assert told <= snapshot.changed
        before = now
        for name, reading in kept.items():  # an equal revision means equal series
            known = revisions.setdefault((name, reading.revision), list(reading.series))
            assert reading.revision is None or known == list(reading.series)
