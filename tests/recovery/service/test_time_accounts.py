"""The controller's series of where the time of jobs goes, of jobs that still run."""

from pathlib import Path

import pytest

from recovery.accounting.goodput.held_sums import Counted, HeldSums
from recovery.accounting.goodput.time_window import catch_up
from recovery.accounting.goodput.timeline import TimePart
from recovery.journal.attempt_records import HiddenSeen, Milestone, StepsSeen, WorkSeen
from recovery.journal.job_records import JobOpened, LauncherStarted
from recovery.journal.store import Journal, open_readonly
from recovery.journal.stored_journal import JournalFile
from recovery.service.metrics.time_accounts import PastSizes, TimeAccounts
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.goodput_jobs import BEGIN, END, FAILED, entries_of, time_of
from tests.support.service import make_folder, running, two_speakers
from tests.support.service_bench import Followed, SetClock, told

pytestmark = pytest.mark.process


@pytest.mark.safety
def test_running_job_has_the_parts_that_its_journal_gives_at_this_moment() -> None:
    job = Followed()

    job.take(*BEGIN, *FAILED)
    job.until(1500.0)

    expected = time_of(*BEGIN, *FAILED, now_s=1500.0)
    wanted: dict[str, float] = {}
    for span in expected.spans:
        wanted[span.part.value] = wanted.get(span.part.value, 0.0) + span.device_s
    found = {
        labels.split('part="')[1].rstrip('"'): value
        for labels, value in job.series("gpu_seconds_total").items()
        if value
    }
    assert found == pytest.approx(wanted)
    assert sum(found.values()) == 4 * 1500.0


def test_hidden_share_has_both_bounds_and_none_where_nobody_tells_it() -> None:
    job = Followed()
    seen = StepsSeen(1, 2, 20, 40.0, 24.0, 10.0, 8.0, 4.0, 0.0, HiddenSeen(20, 5.0, 10.0))

    job.take(*BEGIN, (20.0, seen))

    of_job = 'job_id="job-1",part="communication"'
    assert job.series("job_step_hidden_ratio") == {
        f'bound="least",{of_job}': pytest.approx(1 / 3),
        f'bound="most",{of_job}': pytest.approx(1 / 2),
    }


def worked(ranks: int, tokens: float, device: str = "NVIDIA H100") -> WorkSeen:
    return WorkSeen(1, 10.0, 0.0, ranks, 1e15, tokens, 0.0, "bf16", device)


def linearity(job: Followed) -> dict[str, float]:
    return job.series("job_linearity_ratio")


def test_linearity_is_1_on_the_smallest_size_and_that_against_it_on_a_larger_one() -> None:
    job = Followed()

    job.take(*BEGIN, (30.0, worked(4, 4_000.0)))
    first = linearity(job)
    job.take((50.0, worked(8, 7_200.0)))

    assert first == {'job_id="job-1"': 1.0}
    assert linearity(job) == {'job_id="job-1"': pytest.approx(0.9)}


def test_linearity_compares_with_jobs_of_the_name_that_have_ended_or_run_beside() -> None:
    job = Followed()
    for number, tokens in ((2, 1_000.0), (3, 1_000.0)):
        entries = entries_of(*BEGIN, (30.0, worked(1, tokens)))
        job.accounts.opened(f"job-{number}", "llama", told(entries))
    named = (0.0, JobOpened("job-4", "other"))
    other = entries_of(named, *BEGIN[1:], (30.0, worked(1, 9e9)))
    job.accounts.opened("job-4", "other", told(other))
    job.until(40.0)
    job.accounts.closed("job-2")

    job.take(*BEGIN, (50.0, worked(8, 7_200.0)))

    assert linearity(job)['job_id="job-1"'] == pytest.approx(0.9)
    assert linearity(job)['job_id="job-4"'] == 1.0


def test_linearity_compares_no_other_accelerators_and_is_absent_without_work() -> None:
    job = Followed()

    job.take(*BEGIN)
    before = linearity(job)
    job.take((30.0, worked(4, 4_000.0, "NVIDIA A100")), (50.0, worked(8, 7_200.0)))

    assert before == {}
    assert linearity(job) == {'job_id="job-1"': 1.0}


@pytest.mark.safety
def test_linearity_reads_the_journals_of_jobs_that_ended_before_the_controllers_start(
    tmp_path: Path,
) -> None:
    kept = {
        ("llama", "job-7"): JournalFile(tmp_path),
        ("llama", "job-8"): JournalFile(tmp_path / "torn"),
        ("other", "job-9"): JournalFile(tmp_path / "gone"),
    }
    job = Followed(past=PastSizes(lambda: kept))
    journal = Journal(tmp_path / "journal.db", job.clock, "boot-1")
    for at_s, record in (*BEGIN, (30.0, worked(4, 4_000.0))):
        job.clock.at_s = at_s
        journal.append(record)
    journal.close()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "journal.db").write_bytes(b"no journal")
    job.take(*BEGIN, (50.0, worked(8, 7_200.0)))
    for second in (51.0, 52.0):
        job.until(second)

    assert linearity(job) == {'job_id="job-1"': pytest.approx(0.9)}


def test_time_of_an_open_incident_is_lost_to_its_class_before_it_ends() -> None:
    job = Followed()

    job.take(*BEGIN, *FAILED[:4])  # its ranks are being fenced
    job.until(1100.25)

    lost = job.series("gpu_seconds_unproductive_total")
    assert lost['cause="killed",jobs="managed"'] == 4 * 101.25  # from its last step at 999 s on
    failures = {labels: count for labels, count in job.series("failures_total").items() if count}
    assert failures == {'class="killed",jobs="managed"': 1.0}
    assert job.series("failures_recovered_total")['class="killed",jobs="managed"'] == 0.0
    assert job.series("mttr_seconds") == {}


def test_counters_stand_at_zero_before_they_count_for_the_first_time() -> None:
    """`increase()` of a series that begins with its first failure would miss that one."""
    nothing = Followed()
    job = Followed()

    job.take(*BEGIN, *FAILED, *END)

    for name in (
        *("job_seconds", "gpu_seconds", "gpu_seconds_unproductive", "failures", "restarts"),
        *("failures_recovered", "failure_recovery_seconds"),
    ):
        before, after = nothing.series(f"{name}_total"), job.series(f"{name}_total")
        assert set(before.values()) == {0.0}
        assert before.keys() >= after.keys()
        assert any(after.values()), name
    assert 'class="hung",jobs="watched"' in nothing.series("failures_total")


def test_counter_of_time_never_shrinks_where_time_is_booked_anew() -> None:
    job = Followed()
    job.take(*BEGIN)
    job.until(999.9)
    before = job.series("gpu_seconds_total")['jobs="managed",part="productive"']

    job.take(
        *FAILED[:2]
    )  # the last second turns out to have been the step that was cut off, and the detection

    after = job.series("gpu_seconds_total")['jobs="managed",part="productive"']
    assert before == after == pytest.approx(4 * 991.9)
    category = 'category="productive",job_id="job-1"'
    assert job.series("job_gpu_seconds")[category] == pytest.approx(4 * 991.0)


def test_time_before_the_controllers_start_is_the_jobs_and_no_counters() -> None:
    job = Followed(*BEGIN)
    job.until(500.0)

    job.until(600.0)

    assert job.series("job_gpu_seconds")['category="productive",job_id="job-1"'] == 4 * 592.0
    counted = job.series("gpu_seconds_total")
    assert counted['jobs="managed",part="productive"'] == pytest.approx(400.0)
    assert sum(counted.values()) == pytest.approx(400.0)


def test_job_that_ended_has_no_series_and_stays_in_the_sums() -> None:
    job = Followed()
    job.take(*BEGIN, *FAILED, *END)

    job.accounts.closed("job-1")
    job.until(9000.0)

    assert job.series("job_gpu_seconds") == {}
    assert sum(job.series("job_seconds_total").values()) == pytest.approx(2010.0)


def test_sum_that_shrank_stands_still_until_it_has_grown_past_what_it_was() -> None:
    sums, key = HeldSums(), (Counted.SECONDS, "productive")

    sums.add({}, {key: 10.0})
    first = sums.held()[key]
    sums.add({key: 10.0}, {key: 7.0})
    shrunk = sums.held()[key]
    sums.add({key: 7.0}, {key: 12.0})

    assert (first, shrunk, sums.held()[key]) == (10.0, 10.0, 12.0)


@pytest.mark.safety
def test_journal_that_cannot_be_followed_keeps_no_other_from_it() -> None:
    job = Followed()
    job.accounts.opened("job-2", "broken", catch_up(JournalFile(Path("/nowhere")), 1))

    job.take(*BEGIN)

    assert job.series("job_info") == {'job="llama",job_id="job-1",jobs="managed"': 1.0}


@pytest.mark.safety
def test_journal_that_was_there_at_the_start_is_read_from_disk(tmp_path: Path) -> None:
    clock = SetClock()
    journal = Journal(tmp_path / "journal.db", clock, "boot-1")
    for at_s, record in BEGIN:
        clock.at_s = at_s
        journal.append(record)
    journal.close()
    again = Journal(tmp_path / "journal.db", clock, "boot-1")
    accounts = TimeAccounts(clock, "boot-1")

    accounts.opened("job-1", "llama", catch_up(JournalFile(tmp_path), again.last_number))
    clock.at_s = 20.0
    accounts.turn()

    again.close()
    (standing,) = accounts.standings
    assert standing.totals.wall_s == pytest.approx(20.0)


def test_linearity_after_a_restart_knows_the_sizes_on_which_the_job_ran_before(
    tmp_path: Path,
) -> None:
    clock = SetClock()
    journal = Journal(tmp_path / "journal.db", clock, "boot-1")
    work = [(30.0 + n, worked(4, 4_000.0)) for n in range(400)]
    work += [(430.0 + n, Milestone(1, n, n)) for n in range(400)]
    more = [(1000.0 + n, worked(8, 7_200.0)) for n in range(200)]
    again = (900.0, LauncherStarted(("n1",), 8, 2, "0"))
    for at_s, record in (*BEGIN, *work, again, *more):
        clock.at_s = at_s
        journal.append(record)
    accounts = TimeAccounts(clock, "boot-1")

    accounts.opened("job-1", "llama", catch_up(JournalFile(tmp_path), journal.last_number))
    accounts.turn()

    journal.close()
    (standing,) = accounts.standings
    assert standing.linearity_ratio == pytest.approx(0.9)


@pytest.mark.safety
def test_long_journal_is_read_in_several_turns_and_its_newest_entries_after_it() -> None:
    class Ticking(SetClock):
        def now_s(self) -> float:
            self.at_s += 0.2  # each look at the clock costs more than a turn has
            return self.at_s

    clock = Ticking()
    accounts = TimeAccounts(clock, "boot-1")
    entries = entries_of(*BEGIN, *((11.0 + n, Milestone(1, n, n)) for n in range(500)))
    accounts.opened("job-1", "llama", told(entries[:-1]))
    accounts.entry("job-1", entries[-1])

    accounts.turn()
    after_one = accounts.standings
    for _turn in range(len(entries)):
        accounts.turn()

    assert after_one == ()
    (standing,) = accounts.standings
    assert standing.totals.seconds(TimePart.PRODUCTIVE) >= 500.0


@pytest.mark.safety
def test_controller_that_comes_back_journals_when_the_one_before_was_last_alive(
    tmp_path: Path,
) -> None:
    config = make_folder(tmp_path)
    assert config.is_file()
    with running(tmp_path) as up:
        two_speakers(up.client())
        alive = tmp_path / "state/watched/alive"
        eventually(lambda: alive.exists() and bool(alive.read_bytes()), "a sign of life")

    with running(tmp_path):
        (folder,) = (tmp_path / "state/jobs").iterdir()
        started = [
            entry.record
            for entry in open_readonly(folder / "journal.db").entries
            if isinstance(entry.record, LauncherStarted)
        ]

    assert len(started) == 2
    assert started[0].alive_age_s is None
    assert started[1].alive_age_s is not None
    assert 0.0 <= started[1].alive_age_s < DEADLINE_S
