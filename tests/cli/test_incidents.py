"""`rankmend incidents`, `why` and `status` of this machine: what a person reads after a failure."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankmend.cli import cli
from rankmend.cli.screens import incidents
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.job_records import JobEnded, JobOpened, JobOutcome, OutcomeKind
from recovery.journal.records import (
    MAJOR,
    MINOR,
    Record,
    decode_record,
    encode_record,
    kind_of,
)
from recovery.journal.store import Journal
from tests.support.goodput_jobs import BEGIN, END, FAILED, Timed

pytestmark = pytest.mark.process
GIVEN_UP = ((2400.0, JobEnded(JobOutcome(OutcomeKind.ESCALATED, 1, "it fails again"), True)),)


@dataclass
class SetClock:
    begun_unix_s: float
    at_s: float = 0.0

    def now_s(self) -> float:
        return self.at_s

    def unix_s(self) -> float:
        return self.begun_unix_s + self.at_s


def write_job(
    state: Path, number: int, records: tuple[Timed, ...], begun_unix_s: float = 1_790_000_000.0
) -> None:
    folder = state / "jobs" / f"job-{number}"
    folder.mkdir(parents=True)
    job_id = f"0000000{number}-0000-4000-8000-000000000000"
    about = {"job_id": job_id, "name": f"gpt-{number}"}
    (folder / "job.json").write_text(json.dumps(about))
    (folder / "run.json").write_text(json.dumps({"script": "train.py"}))
    clock = SetClock(begun_unix_s)
    journal = Journal(folder / "journal.db", clock, "boot-1")
    for at_s, record in records:
        clock.at_s = at_s
        body = encode_record(_named(record, number, job_id)).replace(b'"inc-', b'"%d-' % number)
        journal.append(decode_record(kind_of(record), MAJOR, MINOR, body))
    journal.close()
    os.utime(folder, (begun_unix_s, begun_unix_s))


def _named(record: Record, number: int, job_id: str) -> Record:
    if isinstance(record, JobOpened):
        return JobOpened(job_id, f"gpt-{number}")
    if isinstance(record, IncidentOpened):
        failure = record.failure
        finding = replace(failure.finding, node=f"n{number}", job_id=job_id, summary="rank 1 died")
        return replace(record, failure=replace(failure, finding=finding))
    return record


@pytest.fixture
def state(tmp_path: Path) -> Path:
    write_job(tmp_path, 1, (*BEGIN, *FAILED, *END), 1_790_000_000.0)
    write_job(tmp_path, 2, (*BEGIN, *FAILED, *GIVEN_UP), 1_790_100_000.0)
    return tmp_path


def ask(state: Path, *words: str) -> Result:
    environment = {"TZ": "UTC", "COLUMNS": "200"}
    return CliRunner().invoke(cli, [*words, "--state-dir", str(state)], env=environment)


def listed(state: Path, *words: str) -> list[str]:
    rows = json.loads(ask(state, "incidents", *words, "--json").stdout)["incidents"]
    return [row["job"] for row in rows]


def test_incidents_are_one_table_the_newest_first_with_what_each_cost(state: Path) -> None:
    shown = ask(state, "incidents").stdout

    head, _rule, first, second = (line.split() for line in shown.splitlines()[:4])
    assert head == ["id", "began", "(UTC)", "duration", "loss", "job", "what", "blamed"]
    assert "2026-09-22" in first
    assert "2026-09-21" in second
    assert ("gpt-2" in first, "gpt-1" in second) == (True, True)
    assert "recovered:" in second
    assert "MTTR" not in shown
    assert "MTTR" in ask(state, "incidents", "--phases").stdout


def test_incidents_are_chosen_by_job_node_and_time(state: Path) -> None:
    assert listed(state) == ["gpt-2", "gpt-1"]
    assert listed(state, "gpt-1") == ["gpt-1"]
    assert listed(state, "--node", "n2") == ["gpt-2"]
    assert listed(state, "--node", "n") == []
    assert listed(state, "--since", "2026-09-22T00:00Z") == ["gpt-2"]
    assert ask(state, "incidents", "--node", "n").stdout == "no incidents\n"


def test_a_duration_runs_while_the_incident_is_open_and_only_by_its_own_clock() -> None:
    row = {"total_s": None, "recovered_s": None, "caught_up_s": None, "steps_recomputed": None,
           "outcome": "restoring", "opened_unix_s": 100.5, "down_s": None, "phases": {"detect_s": 0.5},
           "highest_step": 400, "restored_step": None}  # fmt: skip

    assert incidents._duration(row, 184.0) == "84 s so far"
    assert incidents._duration(row, None) == "open"
    assert incidents._loss(row, 184.0) == "84 s so far"
    assert incidents._duration(row | {"down_s": 90.0}, None) == "90 s so far"
    restores = row | {"down_s": 90.0, "restored_step": 377}
    assert incidents._loss(restores, None) == "90 s so far, 23 steps to make again"
    done = row | {"total_s": 7.5, "outcome": "recovered", "steps_recomputed": 40}
    assert incidents._duration(done, 184.0) == "7.5 s"
    assert incidents._loss(done, None) == "7.5 s and more, 40 steps again"
    assert incidents._loss(done | {"caught_up_s": 9.25}, None) == "9.25 s, 40 steps again"
    assert incidents._duration(row | {"outcome": "cancelled"}, 184.0) == "-"
    slow = row | {"outcome": "opened", "trained_s": None}
    assert (incidents._duration(slow, 184.0), incidents._loss(slow, 184.0)) == ("trains on", "-")
    stopped = row | {"trained_s": 70.0, "phases": {"detect_s": 0.0}}
    assert incidents._duration(stopped, 184.5) == "14 s so far"
    left = row | {"outcome": "cancelled", "recovered_s": 60.5, "is_lost_least": True}
    assert incidents._loss(left, 184.0) == "60.5 s and more"
    gave_up = row | {"total_s": 0.12, "outcome": "escalated"}
    assert incidents._loss(gave_up, 184.0) == "0.12 s and more"
    assert incidents._loss(row | {"outcome": "escalated"}, 184.0) == "-"


def test_a_follower_gets_a_line_for_each_new_or_changed_incident(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"id": "a-1", "job": "gpt", "opened_unix_s": 0.0, "outcome": "fencing", "blame": "rank",
           "cause": "rank_failed", "ranks": [1], "summary": "rank 1 died", "total_s": None, "caught_up_s": None, "restored_from": None}  # fmt: skip
    looks = iter([[row], [row], [row | {"outcome": "recovered", "total_s": 7.5}]])
    monkeypatch.setattr(incidents, "_FOLLOW_S", 0.0)

    def look() -> list[dict[str, object]]:
        try:
            return next(looks)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt):
        incidents._follow(look, as_json=False)

    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert said[0].endswith("a-1  gpt: recovering: rank 1 died (blamed: rank)")
    assert said[1].endswith("a-1  gpt: recovered after 7.5 s: rank 1 died (blamed: rank)")


def test_why_without_an_argument_is_the_newest_incident_with_times_of_day(
    state: Path, tmp_path: Path
) -> None:
    newest = ask(state, "why")
    empty = ask(tmp_path / "none", "why")

    assert newest.stdout.startswith("gpt-2  2026-09-22 ")
    assert "+   0.000 s  #" in newest.stdout.splitlines()[1]
    assert newest.stdout.splitlines()[1][2] == ":"
    assert "training went on after" in newest.stdout.splitlines()[-1]
    assert (empty.exit_code, empty.stdout) == (0, "no incidents\n")


def test_status_after_the_end_shows_the_newest_ended_jobs(state: Path) -> None:
    shown = ask(state, "status").stdout

    assert "no running job" in shown
    assert "gpt-2  gave up" in shown
    assert "gpt-1  stopped" in shown


def test_status_of_an_unknown_job_fails(state: Path) -> None:
    told = ask(state, "status", "nosuch")

    assert told.exit_code == 1
    assert told.stderr.startswith("rankmend: no job 'nosuch'")


def test_status_of_all_jobs_is_a_table_with_start_duration_and_script(state: Path) -> None:
    shown = ask(state, "status", "--all").stdout

    (row,) = (line.split() for line in shown.splitlines() if line.startswith("gpt-2"))
    assert row[:4] == ["gpt-2", "gave", "up", "00000002"]
    assert row[4] == "2026-09-22"
    assert "train.py" in row
    assert shown.index("gpt-2") < shown.index("gpt-1"), "the newest first"
