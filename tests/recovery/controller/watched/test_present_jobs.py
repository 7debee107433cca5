"""Which jobs run on a node by the word of its agent, and when that word counts."""

from pathlib import Path

import pytest

from rankmend.watched_report import LeftJob, PresentJob, WatchedReport
from recovery.controller.watched.present_jobs import (
    PRESENT_KEPT_S,
    PRESENT_OF_NODE_MAX,
    SAVE_NEW_S,
    SAVE_S,
    SILENT_S,
    AgentWordsFile,
    PresentJobs,
)
from tests.support.simulation import SimClock

OURS, OTHER = (f"0c1d6a52-0000-4000-8000-00000000000{digit}" for digit in "12")


def report(node: str, *jobs: tuple[str, int, str]) -> WatchedReport:
    present = tuple(PresentJob(job_id=job, uid=uid, user=user) for job, uid, user in jobs)
    return WatchedReport(node=node, present=present)


def test_a_job_is_where_the_agent_reports_it_and_nowhere_else() -> None:
    jobs = PresentJobs()
    jobs.take(report("n1", (OURS, 1001, "alice")), 10.0)

    assert jobs.is_on("n1", OURS, "alice", 11.0)
    assert not jobs.is_on("n2", OURS, "alice", 11.0)
    assert not jobs.is_on("n1", OTHER, "alice", 11.0)
    assert (jobs.knows("n1"), jobs.knows("n2")) == (True, False)
    assert (jobs.speaks("n1", 10.0 + PRESENT_KEPT_S), jobs.speaks("n2", 11.0)) == (True, False)
    assert not jobs.speaks("n1", 10.1 + PRESENT_KEPT_S)


def test_an_agent_is_silent_once_two_reports_are_missing_and_no_longer_than_its_word_counts() -> (
    None
):
    jobs = PresentJobs()
    jobs.take(report("n1", (OURS, 1001, "alice")), 10.0)

    assert not jobs.is_silent("n1", 9.9 + SILENT_S)
    assert jobs.is_silent("n1", 10.0 + SILENT_S)
    assert jobs.is_silent("n1", 10.0 + PRESENT_KEPT_S)
    assert not jobs.is_silent("n1", 10.1 + PRESENT_KEPT_S), "it is not known where the job is"
    assert not jobs.is_silent("n2", 10.0 + SILENT_S), "it has never reported"


def test_an_agent_that_reports_no_job_any_more_is_not_silent() -> None:
    jobs = PresentJobs()
    jobs.take(report("n1", (OURS, 1001, "alice")), 10.0)
    jobs.take(report("n1"), 100.0)

    assert not jobs.is_silent("n1", 10.0 + SILENT_S)


def test_word_that_was_read_from_a_file_says_nothing_of_an_agents_silence(tmp_path: Path) -> None:
    clock = SimClock()
    before = PresentJobs(AgentWordsFile(tmp_path / "w.json", clock, "boot-1"), clock.now_s)
    before.take(report("n1", (OURS, 1001, "alice")), clock.now_s())
    before.save(clock.now_s(), is_last=True)

    after = PresentJobs(AgentWordsFile(tmp_path / "w.json", clock, "boot-1"), clock.now_s)

    assert after.is_on("n1", OURS, "alice", clock.now_s() + SILENT_S)
    assert not after.is_silent("n1", clock.now_s() + SILENT_S), "it may have reported meanwhile"


def test_the_word_lasts_ten_minutes_also_after_the_job_has_left() -> None:
    jobs = PresentJobs()
    jobs.take(report("n1", (OURS, 1001, "alice"), (OTHER, 1002, "bob")), 10.0)
    jobs.take(report("n1", (OTHER, 1002, "bob")), 70.0)
    jobs.take(report("n1", (OTHER, 1002, "bob")), 130.0)

    assert jobs.is_on("n1", OURS, "alice", 10.0 + PRESENT_KEPT_S)
    assert not jobs.is_on("n1", OURS, "alice", 10.1 + PRESENT_KEPT_S)
    assert jobs.is_on("n1", OTHER, "bob", 10.1 + PRESENT_KEPT_S)


def test_a_job_that_has_left_counts_for_the_rest_of_its_ten_minutes_after_a_take_over() -> None:
    """The agent says so again: the controller that takes over has nothing, and the job is on the node no more."""
    jobs = PresentJobs()
    left = LeftJob(job_id=OURS, uid=1001, user="alice", age_s=100.0)
    jobs.take(WatchedReport(node="n1", left=(left,)), 500.0)

    assert jobs.is_on("n1", OURS, "alice", 400.0 + PRESENT_KEPT_S)
    assert not jobs.is_on("n1", OURS, "alice", 400.1 + PRESENT_KEPT_S)
    assert not jobs.is_on("n2", OURS, "alice", 501.0)


def test_what_an_agent_says_of_a_job_that_has_left_makes_no_word_older_and_none_for_ever() -> None:
    jobs = PresentJobs()
    jobs.take(report("n1", (OURS, 1001, "alice")), 490.0)
    older = LeftJob(job_id=OURS, uid=1001, user="alice", age_s=100.0)
    ancient = LeftJob(job_id=OTHER, uid=1002, user="bob", age_s=PRESENT_KEPT_S + 1.0)
    jobs.take(WatchedReport(node="n1", left=(older, ancient)), 500.0)

    assert jobs.is_on("n1", OURS, "alice", 490.0 + PRESENT_KEPT_S)
    assert not jobs.is_on("n1", OTHER, "bob", 500.0)


def test_an_owner_called_otherwise_than_the_user_counts_until_nodes_differ_about_the_user() -> None:
    jobs = PresentJobs()
    jobs.take(report("n1", (OURS, 1001, "alice")), 10.0)
    assert jobs.is_on("n1", OURS, "team-llama", 11.0)

    jobs.take(report("n2", (OURS, 1002, "mallory")), 12.0)

    assert not jobs.is_on("n1", OURS, "team-llama", 13.0)
    assert not jobs.is_on("n2", OURS, "team-llama", 13.0)
    assert jobs.is_on("n1", OURS, "alice", 13.0)
    assert jobs.is_on("n1", OURS, "1001", 13.0)
    assert not jobs.is_on("n2", OURS, "alice", 13.0)


def test_a_node_that_names_ever_other_jobs_keeps_a_bounded_number() -> None:
    jobs = PresentJobs()
    named = [f"0c1d6a52-0000-4000-8000-{number:012d}" for number in range(PRESENT_OF_NODE_MAX + 64)]
    for first in range(0, len(named), 64):
        jobs.take(report("n1", *((job, 1, "a") for job in named[first : first + 64])), 10.0)

    assert sum(jobs.is_on("n1", job, "a", 11.0) for job in named) == PRESENT_OF_NODE_MAX


class Host:
    """The machine of a controller, whose listened seconds are those of its clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = SimClock()
        self.boot_id = "boot-1"

    def start(self) -> PresentJobs:
        file = AgentWordsFile(self.path, self.clock, self.boot_id)
        return PresentJobs(file, self.clock.now_s)

    def boot(self, away_s: float, jumped_s: float = 0.0) -> None:
        later_s = self.clock.unix_s() + away_s + jumped_s
        self.clock.time_s = 20.0
        self.clock.jumped_s += later_s - self.clock.unix_s()
        self.boot_id = "boot-2"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "present-jobs.json")


def test_word_of_an_agent_survives_a_controller_that_restarts_while_the_node_is_lost(
    host: Host,
) -> None:
    first = host.start()
    first.take(report("n1", (OURS, 1001, "alice")), host.clock.now_s())
    first.save(host.clock.now_s(), is_last=True)
    host.clock.time_s += PRESENT_KEPT_S - 1.0

    again = host.start()

    assert again.is_on("n1", OURS, "alice", host.clock.now_s())
    assert not again.is_on("n1", OTHER, "alice", host.clock.now_s())
    assert not again.is_on("n1", OURS, "alice", host.clock.now_s() + 1.1), "it becomes no younger"


@pytest.mark.parametrize(
    ("away_s", "jumped_s", "counts"),
    [(100.0, 0.0, True), (700.0, 0.0, False), (100.0, -7200.0, False)],
    ids=["boot", "long away", "clock stepped back"],
)
def test_word_of_an_agent_survives_a_boot_of_the_controllers_machine_if_its_age_is_known(
    host: Host, away_s: float, jumped_s: float, counts: bool
) -> None:
    first = host.start()
    first.take(report("n1", (OURS, 1001, "alice")), host.clock.now_s())
    first.save(host.clock.now_s(), is_last=True)
    host.boot(away_s, jumped_s)

    assert host.start().is_on("n1", OURS, "alice", host.clock.now_s()) is counts


def test_new_word_is_stored_within_seconds_and_a_repeated_one_less_often(host: Host) -> None:
    jobs = host.start()
    began_s = host.clock.now_s()
    jobs.take(report("n1", (OURS, 1001, "alice")), began_s)
    jobs.save(began_s)
    jobs.take(report("n1", (OURS, 1001, "alice")), began_s + 1.0)
    written = host.path.stat().st_ino

    jobs.save(began_s + SAVE_NEW_S)
    after_repeat = host.path.stat().st_ino
    jobs.take(report("n2", (OURS, 1001, "alice")), began_s + SAVE_NEW_S)
    jobs.save(began_s + SAVE_NEW_S)
    after_new = host.path.stat().st_ino
    jobs.take(report("n2", (OURS, 1001, "alice")), began_s + SAVE_NEW_S + SAVE_S)
    jobs.save(began_s + SAVE_NEW_S + SAVE_S)

    assert written == after_repeat
    assert host.path.stat().st_ino != after_new
    host.clock.time_s = began_s + SAVE_NEW_S + SAVE_S
    assert host.start().is_on("n2", OURS, "alice", host.clock.now_s())
    assert after_new != after_repeat


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b"[" * 1000, b'{"words": [[1, 2, 3]]}'])
def test_broken_file_says_nothing_and_is_replaced(host: Host, text: bytes) -> None:
    host.path.write_bytes(text)

    jobs = host.start()
    jobs.take(report("n1", (OURS, 1001, "alice")), host.clock.now_s())
    jobs.save(host.clock.now_s())

    assert host.start().is_on("n1", OURS, "alice", host.clock.now_s())


def test_folder_that_takes_no_file_costs_the_word_at_the_next_start_only(tmp_path: Path) -> None:
    host = Host(tmp_path / "missing" / "present-jobs.json")
    jobs = host.start()
    jobs.take(report("n1", (OURS, 1001, "alice")), host.clock.now_s())

    jobs.save(host.clock.now_s())

    assert jobs.is_on("n1", OURS, "alice", host.clock.now_s())
