"""What each rank was at: what the job was, and where it was itself broken."""

from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.timeline import TimePart, TimeSpan
from recovery.api.wire import IncidentView
from recovery.lab.drill.drill_report import BLAMED, LOST_ANOTHER, RankStretch, rank_states


def span(part: TimePart, begin_s: float, end_s: float) -> TimeSpan:
    return TimeSpan(begin_s, end_s, part, 1, 0)


TIME = JobTime(
    "id", "drill", 1000.0,
    (
        span(TimePart.PRODUCTIVE, 0.0, 10.0), span(TimePart.DETECT, 10.0, 11.0),
        span(TimePart.DECIDE, 11.0, 14.0), span(TimePart.PRODUCTIVE, 14.0, 30.0),
    ),
    (), (), (),
)  # fmt: skip


def incident(total_s: float | None = 4.0) -> IncidentView:
    return IncidentView(
        incident_id="i", job_id="id", job="drill", opened_unix_s=1011.0, attempt=1, cause="rank_failed",
        signature="", summary="", blame="", node="n", ranks=[1], victims=[0], outcome="recovered", tries=1,
        steps=[], phases={"detect_s": 1.0}, notes=[], total_s=total_s, recovered_s=None,
        steps_recomputed=None, caught_up_s=None,
    )  # fmt: skip


def test_blamed_rank_its_victim_and_another_one_are_told_apart() -> None:
    victim, blamed, other = rank_states(TIME, [incident()], 3)

    assert blamed == [
        RankStretch("productive", 0.0, 10.0), RankStretch(BLAMED, 10.0, 14.0), RankStretch("productive", 14.0, 30.0)
    ]  # fmt: skip
    assert [one.state for one in victim] == ["productive", LOST_ANOTHER, "productive"]
    assert [one.state for one in other] == ["productive", "detect", "decide", "productive"]


def test_incident_that_did_not_end_lasts_to_the_end() -> None:
    _victim, blamed = rank_states(TIME, [incident(None)], 2)

    assert [(one.state, one.end_s) for one in blamed][-1] == (BLAMED, 30.0)
    assert sum(one.end_s - one.begin_s for one in blamed) == TIME.length_s
