"""The second checker of `bench.jepsen`: a good history passes, and each planted violation is found, from text alone."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.jepsen.history import History, Limits, RankLife, SeenOrder
from bench.jepsen.second import history_lines
from bench.jepsen.second_checker import Reader
from detectors.finding import Blame, Finding, Kind, Severity
from recovery.journal.attempt_records import AttemptStarted, Cause, Choice, Placement
from recovery.journal.cluster_records import Spent
from recovery.journal.incident_machine import Event, Outcome
from recovery.journal.incident_records import Failure, IncidentEvent, IncidentOpened
from recovery.journal.journal_rows import GENESIS, make_row
from recovery.journal.limits import Policy
from recovery.journal.records import Entry, Record

pytestmark = pytest.mark.safety

JOB = "0c1d6a52-0000-4000-8000-000000000001"
LIMITS = Limits(3, 5, 5, stops_per_hour_max=2, moves_per_job_day_max=2)
FINDING = Finding(
    Kind.NUMBERS_WRONG, Severity.CRITICAL, Blame.NOBODY, "the loss is NaN", JOB, 1, "", (), (), 0.0
)  # fmt: skip
OPENED = IncidentOpened("i1", Failure(1, FINDING, None, 0, None, 5, False, ()), 0.1, 5, Policy())
PLACED = (Placement("n1", (0,)), Placement("n2", (1,)))
Row = tuple[Any, ...]


def attempt(number: int) -> AttemptStarted:
    cause = Cause.FIRST if number == 1 else Cause.INCIDENT
    return AttemptStarted(number, cause, Choice(True, None, "r"), placement=PLACED)


def event(outcome: Outcome, answers: str) -> IncidentEvent:
    return IncidentEvent(Event("i1", outcome, answers, "r"))


def rows(name: str, *written: tuple[Record, str, int], at_s: float = 1000.0) -> list[Row]:
    """Return rows as the database has them, one committed each second."""
    found: list[Row] = []
    before = GENESIS
    for number, (record, writer, epoch) in enumerate(written, 1):
        row = make_row(Entry(number, 0.0, 0.0, "boot", record), before)
        before = row.checksum
        found.append((name, writer, epoch, at_s + number, *row))
    return found


def spent(job_id: str = JOB, incident_id: str = "i1") -> Spent:
    return Spent(job_id, incident_id, 1, "restart_in_place", (), stops_training=True)


JOB_RECORDS: list[tuple[Record, str, int]] = [
    (attempt(1), "a", 1),
    (OPENED, "a", 1),
    (event(Outcome.ACCEPTED, "i1"), "b", 2),
    (event(Outcome.SUCCEEDED, "i1/1/fencing"), "b", 2),
    (attempt(2), "b", 2),
    (event(Outcome.SUCCEEDED, "i1/1/restoring"), "b", 2),
    (event(Outcome.SUCCEEDED, "i1/1/verifying"), "b", 2),
]
CLUSTER = rows("cluster", (spent(), "a", 0), at_s=1001.5)
FIRST = SeenOrder(1001.5, JOB, "n1", "l1", 1, "c1", 2, 1, (0,), True)
SEEN = History(
    LIMITS,
    orders=(
        FIRST,
        replace(FIRST, node="n2", launcher_id="l2", ranks=(1,)),
        replace(FIRST, at_unix_s=1006.0, epoch=2, controller_id="c2", revision=7, attempt=2),
    ),
    lives=(
        RankLife(JOB, "n1", 1, (0,), 1002.0, 1003.0),
        RankLife(JOB, "n2", 1, (1,), 1002.0, 1003.0),
        RankLife(JOB, "n1", 2, (0,), 1006.0, None),
        RankLife(JOB, "n2", 2, (1,), 1006.0, None),
    ),
)  # fmt: skip


def check(folder: Path, found: list[Row], seen: History = SEEN) -> list[str]:
    """Return the rules that the second checker finds violated."""
    path = folder / "history.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in history_lines(found, seen)))
    reader = Reader()
    reader.read(path)
    reader.check()
    return [one.partition(":")[0] for one in reader.violations]


def of_job(*written: tuple[Record, str, int]) -> list[Row]:
    return [*CLUSTER, *rows(f"job:{JOB}", *written)]


def test_a_good_history_has_no_violation(tmp_path: Path) -> None:
    assert check(tmp_path, of_job(*JOB_RECORDS)) == []


def test_an_incident_that_was_given_up_has_ended(tmp_path: Path) -> None:
    given_up = [*JOB_RECORDS[:3], (event(Outcome.ESCALATE, "i1/1/fencing"), "b", 2)]

    assert check(tmp_path, of_job(*given_up), replace(SEEN, orders=(), lives=())) == []


def _change(found: list[Row], at: int, place: int, value: object) -> list[Row]:
    row = list(found[at])
    row[place] = value
    return [*found[:at], tuple(row), *found[at + 1 :]]


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("gap", lambda good: [good[0], *good[2:]]),
        ("checksum", lambda good: _change(good, 2, 11, b'{"incident_id": "i2"}')),
        ("two owners", lambda good: _change(good, 3, 2, 1)),
        ("epoch falls", lambda good: _change(good, 5, 2, 1)),
        ("commits out of order", lambda good: _change(good, 5, 3, 990.0)),
        ("stopped before it was spent", lambda good: good[1:]),
        ("stopped before it was spent", lambda good: _change(good, 0, 3, 1003.5)),
        ("not ended", lambda good: good[:-1]),
    ],
)
def test_what_the_database_must_not_hold_is_found(
    tmp_path: Path, rule: str, spoil: Callable[[list[Row]], list[Row]]
) -> None:
    good = of_job(*JOB_RECORDS)

    assert rule in check(tmp_path, spoil(good), replace(SEEN, orders=(), lives=()))


def test_two_incidents_at_once_and_an_attempt_that_falls_are_found(tmp_path: Path) -> None:
    second = replace(OPENED, incident_id="i2")
    found = of_job(*JOB_RECORDS[:2], (second, "a", 1), (attempt(1), "a", 1))

    told = check(tmp_path, found, replace(SEEN, orders=(), lives=()))

    assert {"two incidents", "attempt falls"} <= set(told)


@pytest.mark.parametrize(
    ("rule", "number", "changes"),
    [
        ("order before its record", 0, {"at_unix_s": 1000.5}),
        ("order without record", 0, {"attempt": 9}),
        ("order of other ranks", 0, {"ranks": (1,)}),
        ("order of two owners", 1, {"controller_id": "c9"}),
        ("order of two attempts", 1, {"attempt": 2}),
        ("launcher went back", 2, {"epoch": 1, "revision": 1, "controller_id": "c1"}),
        ("attempts of orders fall", 2, {"epoch": 1, "revision": 1, "controller_id": "c1"}),
    ],
)
def test_what_launchers_must_not_see_is_found(
    tmp_path: Path, rule: str, number: int, changes: dict[str, Any]
) -> None:
    orders = list(SEEN.orders)
    orders[number] = replace(orders[number], **changes)

    assert rule in check(tmp_path, of_job(*JOB_RECORDS), replace(SEEN, orders=tuple(orders)))


@pytest.mark.parametrize(
    ("rule", "number", "changes"),
    [
        ("two attempts at once", 0, {"ended_unix_s": 1006.1}),
        ("two attempts at once", 0, {"ended_unix_s": None}),
        ("one rank twice", 3, {"ranks": (0,)}),
        ("started twice", 3, {"node": "n1"}),
        ("life without record", 3, {"node": "n3"}),
    ],
)
def test_what_ranks_must_not_do_is_found(
    tmp_path: Path, rule: str, number: int, changes: dict[str, Any]
) -> None:
    lives = list(SEEN.lives)
    lives[number] = replace(lives[number], **changes)

    assert rule in check(tmp_path, of_job(*JOB_RECORDS), replace(SEEN, lives=tuple(lives)))


@pytest.mark.parametrize(("stops", "rule"), [(2, []), (3, ["stops per hour"])])
def test_stops_of_training_within_an_hour_are_counted(
    tmp_path: Path, stops: int, rule: list[str]
) -> None:
    of_people = [replace(spent("other", f"p{n}"), by_person=True) for n in range(3)]
    made = [*of_people, *[spent("other", f"i{n}") for n in range(stops)]]
    found = rows("cluster", *[(one, "a", 0) for one in made])

    assert check(tmp_path, found, replace(SEEN, orders=(), lives=())) == rule


def test_a_plan_that_was_spent_twice_is_found(tmp_path: Path) -> None:
    found = rows("cluster", (spent(), "a", 0), (spent(), "a", 0))

    assert check(tmp_path, found, replace(SEEN, orders=(), lives=())) == ["spent twice"]
