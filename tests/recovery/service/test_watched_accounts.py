"""Where the time of jobs of other launchers went: from agents' reports through the controller's journal to the figures."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import recovery.journal.watched_journal as segments
from detectors.hang.live import HungLimits
from recovery.accounting.goodput.anatomy import anatomy_of, divide_steps
from recovery.accounting.goodput.figures import figures_of
from recovery.accounting.goodput.job_time import JobTime, StepsTime, WorkTime
from recovery.accounting.goodput.throughput import throughput_of
from recovery.accounting.goodput.timeline import TimePart
from recovery.accounting.goodput.told_work import condense_steps, condense_work
from recovery.accounting.goodput.watched_time import WatchedBook
from recovery.api import wire
from recovery.console.views.watched_time_view import time_of_view, view_time
from recovery.controller.watched.verdict import WatchedState
from recovery.controller.watched.watched_jobs import ENDED_KEPT_S, SILENT_KEPT_S, WatchedJobs
from recovery.journal.watched_journal import read_watched
from recovery.local.report.time_report import plain_job, report_of
from recovery.service.metrics.measures import Measures
from recovery.service.metrics.time_accounts import TimeAccounts
from recovery.service.metrics.watched_accounts import WatchedAccounts
from tests.support.watched_cluster import JOB, Cluster

pytestmark = pytest.mark.process


class ClusterClock:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.jump_s = 0.0

    def now_s(self) -> float:
        return self._cluster.now_s

    def unix_s(self) -> float:
        return 5000.0 + self.jump_s + self._cluster.now_s


class Site:
    """A cluster with the controller's accounts of it, on a real disk."""

    def __init__(self, state: Path, cluster: Cluster | None = None) -> None:
        self.state = state
        self.cluster = cluster or Cluster()
        self.clock = ClusterClock(self.cluster)
        self.started: list[WatchedAccounts] = []
        self.start()

    def start(self) -> None:
        """Start a controller, which knows what is on disk."""
        self.watched = WatchedAccounts(self.state, self.clock, "boot-1")
        self.accounts = TimeAccounts(self.clock, "boot-1", self.watched)
        self.cluster.jobs = WatchedJobs(
            lambda: self.cluster.now_s, lambda _name: HungLimits(), listener=self.watched
        )
        self.started.append(self.watched)
        self.accounts.turn()

    def close(self) -> None:
        for one in self.started:
            one.close()

    def run(self, for_s: float, silent: tuple[str, ...] = ()) -> WatchedState:
        until_s = self.cluster.now_s + for_s
        while self.cluster.now_s < until_s:
            with contextlib.suppress(KeyError):  # a job that is forgotten
                self.cluster.run(min(30.0, until_s - self.cluster.now_s), silent)
            self.accounts.turn()
        return (
            self.cluster.jobs.jobs[JOB].verdict.state
            if JOB in self.cluster.jobs.jobs
            else WatchedState.ENDED
        )

    def away(self, for_s: float) -> None:
        """Let the job run on while no controller listens."""
        self.cluster.now_s += for_s

    def time(self) -> JobTime:
        (found,) = self.watched.times()
        assert found.length_s == pytest.approx(sum(span.length_s for span in found.spans), rel=1e-9)
        return found

    def seconds(self) -> dict[str, float]:
        time = self.time()
        return {part.value: time.seconds_of(part) for part in TimePart if time.seconds_of(part) > 0}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_watched_job_that_trains_is_productive_and_its_ranks_count_as_gpus(site: Site) -> None:
    site.run(600.0)

    seconds = site.seconds()
    assert sum(seconds.values()) == pytest.approx(595.0)  # since its first report
    assert seconds["productive"] >= 580.0
    figures = figures_of([site.time()])
    assert figures.device_s == pytest.approx(4 * 595.0)
    assert figures.failures == 0


def test_hang_counts_from_the_last_step_on_and_is_lost_to_the_rank_that_is_waited_for(
    site: Site,
) -> None:
    site.run(600.0)
    site.cluster.states[2] = "T"
    site.cluster.pause()
    assert site.run(300.0) is WatchedState.HUNG
    site.cluster.states.clear()
    site.cluster.go_on()
    site.run(600.0)

    assert site.seconds()["stalled"] == pytest.approx(300.0, abs=12.0)
    figures = figures_of([site.time()])
    assert (figures.failures, figures.mttr_s) == (1, pytest.approx(300.0, abs=12.0))
    assert figures.losses[0].cause == "hung rank 2 on n2"
    assert figures.by_node["n2"].failures == 1
    assert figures.goodput_ratio == pytest.approx(1185 / 1495, abs=0.02)


@pytest.mark.parametrize("trains", [True, False])
def test_hung_job_that_ends_before_the_next_report_has_recovered_if_it_made_a_step(
    site: Site, *, trains: bool
) -> None:
    site.run(600.0)
    site.cluster.states[2] = "T"
    site.cluster.pause()
    assert site.run(300.0) is WatchedState.HUNG
    site.cluster.states.clear()
    if trains:
        site.cluster.go_on()
    site.cluster.end()
    assert site.run(5.0) is WatchedState.ENDED
    site.close()
    site.start()  # from the journal

    (stall,) = site.time().stalls
    figures = figures_of([site.time()])
    told = plain_job(report_of(site.time()))["stalls"][0]
    assert (stall.recovered_s is not None, figures.failures) == (trains, 1)
    assert figures.mttr_s == (pytest.approx(305.0, abs=12.0) if trains else None)
    assert told["outcome"] == ("recovered" if trains else "ended")


@pytest.mark.parametrize("trains", [True, False])
def test_job_that_is_started_again_and_soon_ends_has_recovered_if_it_made_a_step(
    site: Site, *, trains: bool
) -> None:
    site.run(600.0)
    ranks = dict(site.cluster.nodes)
    site.cluster.nodes = {"n1": [], "n2": []}
    assert site.run(60.0) is WatchedState.ENDED
    site.cluster.nodes = ranks
    site.cluster.pids += 100
    site.cluster.began_at_s = site.cluster.now_s + 5.0
    site.cluster.run(5.0)
    assert site.cluster.state is WatchedState.STARTING
    if not trains:
        site.cluster.pause()
    site.cluster.end()
    site.run(5.0)

    (stall,) = site.time().stalls
    assert (stall.kind, stall.recovered_s is not None) == ("restarted", trains)


def test_ranks_that_were_started_again_make_up_the_steps_of_before_first(site: Site) -> None:
    site.run(600.0)
    ranks = dict(site.cluster.nodes)
    site.cluster.nodes = {"n1": [], "n2": []}
    assert site.run(60.0) is WatchedState.ENDED
    site.cluster.nodes = ranks
    site.cluster.pids += 100
    # From a checkpoint of 100 steps ago: 50 s.
    site.cluster.began_at_s = site.cluster.now_s - (600 / 0.5 - 100) * 0.5
    site.run(600.0)

    seconds = site.seconds()
    assert seconds["interrupted"] == pytest.approx(60.0, abs=12.0)
    assert seconds["recomputed"] == pytest.approx(50.0, abs=25.0)
    figures = figures_of([site.time()])
    assert figures.by_class["restarted"].failures == figures.restarts == 1
    assert sum(seconds.values()) == pytest.approx(1255.0)


def test_time_without_a_controller_is_training_as_far_as_steps_prove_it(site: Site) -> None:
    site.run(600.0)
    site.away(400.0)  # kill -9: nothing is closed
    site.start()
    site.run(300.0)

    seconds = site.seconds()
    assert sum(seconds.values()) == pytest.approx(1295.0)
    assert seconds["productive"] == pytest.approx(1280.0, abs=15.0)
    assert any(span.is_estimated for span in site.time().spans)


def test_time_without_a_controller_in_which_too_few_steps_were_made_is_unaccounted(
    site: Site,
) -> None:
    site.run(600.0)
    site.cluster.pause()
    site.away(400.0)
    site.cluster.go_on()
    site.start()
    site.run(300.0)

    seconds = site.seconds()
    assert sum(seconds.values()) == pytest.approx(1295.0)
    assert seconds["unaccounted"] == pytest.approx(400.0, abs=20.0)


def test_wall_clock_that_jumps_changes_nothing(site: Site) -> None:
    site.run(300.0)
    site.clock.jump_s = -86_400.0
    site.run(300.0)

    assert sum(site.seconds().values()) == pytest.approx(595.0)


def test_node_that_reports_nothing_makes_the_time_unaccounted_unless_steps_were_made(
    site: Site,
) -> None:
    site.run(600.0)
    assert site.run(300.0, silent=("n2",)) is WatchedState.UNKNOWN
    before = site.seconds()
    site.run(300.0)

    assert before["unaccounted"] == pytest.approx(270.0, abs=12.0)
    assert "unaccounted" not in site.seconds()


def test_job_that_nobody_reports_any_more_ended_when_it_was_last_heard_of(site: Site) -> None:
    site.run(600.0)
    site.cluster.nodes = {}
    site.run(SILENT_KEPT_S + 120.0)

    assert site.time().has_ended
    assert sum(site.seconds().values()) == pytest.approx(595.0 + 30.0, abs=12.0)


def test_sums_count_a_watched_job_beside_the_managed_ones(site: Site) -> None:
    measures = Measures()
    measures.account(site.accounts)
    site.run(600.0)

    text = measures.render().decode()

    lines = [line for line in text.splitlines() if 'jobs="watched"' in line]
    found = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
    assert found['rankmend_controller_goodput_ratio{jobs="watched"}'] > 0.95
    total = sum(
        v for k, v in found.items() if k.startswith("rankmend_controller_gpu_seconds_total")
    )
    assert total == pytest.approx(4 * 595.0)
    assert f'rankmend_controller_job_info{{job="llama",job_id="{JOB}",jobs="watched"}} 1.0' in lines


def test_ended_job_has_no_series_and_is_kept(site: Site) -> None:
    site.run(300.0)
    site.cluster.nodes = {"n1": [], "n2": []}
    site.run(ENDED_KEPT_S + 60.0)

    assert site.accounts.standings == ()
    assert site.time().has_ended
    site.start()
    assert sum(site.seconds().values()) == pytest.approx(295.0, abs=12.0)


@pytest.mark.safety
def test_files_of_the_journal_are_bounded_and_each_tells_of_all_jobs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "RECORDS_MAX", 20)
    monkeypatch.setattr(segments, "FILES_MAX", 3)
    site.run(3000.0)

    folder = site.state / "watched"
    numbers = sorted(int(one.name) for one in folder.iterdir() if one.is_dir())
    assert len(numbers) == 3
    assert numbers[0] > 1
    book = WatchedBook()
    for entry in read_watched(folder):
        book.take(entry)
    (time,) = book.times()
    assert time.name == "llama"
    assert time.seconds_of(TimePart.PRODUCTIVE) > 600.0


def test_damaged_file_is_left_out_and_the_rest_is_told(site: Site) -> None:
    site.run(600.0)
    site.watched.close()
    (site.state / "watched" / "000001" / "journal.db").write_bytes(b"no journal at all" * 1000)
    site.start()
    site.run(300.0)

    assert sum(site.seconds().values()) == pytest.approx(300.0, abs=12.0)


def test_notes_wait_for_a_disk_that_fails(tmp_path: Path) -> None:
    (tmp_path / "watched").write_text("a file in the way")
    site = Site(tmp_path)
    site.run(100.0)
    assert site.watched.problem is not None
    (tmp_path / "watched").unlink()
    site.run(500.0)

    assert site.watched.problem is None
    site.close()
    assert sum(site.seconds().values()) == pytest.approx(595.0)


def test_work_that_watched_ranks_tell_gives_throughput_mfu_and_linearity(site: Site) -> None:
    measures = Measures()
    measures.account(site.accounts)
    site.cluster.works = (0.4 * 989.5e12 * 0.5, "NVIDIA H100 80GB HBM3")  # MFU 40 % at 0.5 s a step

    site.run(600.0)

    found = throughput_of([site.time()])
    assert found is not None
    assert found.mfu_ratio == pytest.approx(0.4, rel=0.02)
    assert found.tokens_per_s == pytest.approx(4 * 20.0, rel=0.02)
    shown = measures.render().decode()
    assert series(shown, "job_mfu_ratio") == pytest.approx(0.4, rel=0.05)
    assert series(shown, "job_tokens_per_second") == pytest.approx(80.0, rel=0.05)
    assert series(shown, "job_linearity_ratio") == 1.0


def test_work_of_watched_ranks_outlives_the_controller_and_is_of_the_present_while_they_train(
    site: Site,
) -> None:
    site.cluster.works = (1e15, "NVIDIA H100 80GB HBM3")
    site.run(600.0)
    site.start()
    site.cluster.states[2] = "T"
    site.cluster.pause()
    measures = Measures()
    measures.account(site.accounts)

    assert site.run(300.0) is WatchedState.HUNG

    assert throughput_of([site.time()]) is not None
    assert series(measures.render().decode(), "job_tokens_per_second") is None


def test_rates_of_processes_that_are_gone_are_not_those_of_the_next(site: Site) -> None:
    measures = Measures()
    measures.account(site.accounts)
    site.cluster.works = (1e15, "NVIDIA H100 80GB HBM3")
    site.run(300.0)
    before = series(measures.render().decode(), "job_tokens_per_second")
    ranks, site.cluster.nodes = dict(site.cluster.nodes), {"n1": [], "n2": []}
    site.run(60.0)

    site.cluster.nodes, site.cluster.works = ranks, None
    site.cluster.pids += 100
    assert site.run(60.0) is WatchedState.TRAINING

    assert before == pytest.approx(80.0, rel=0.05)
    assert series(measures.render().decode(), "job_tokens_per_second") is None


def test_steps_of_watched_ranks_with_sections_are_divided_and_what_is_hidden_is_told(
    site: Site,
) -> None:
    site.cluster.has_sections = True

    site.run(600.0)

    found = anatomy_of([site.time()])
    assert found is not None
    assert found.step_s == pytest.approx(0.5)
    assert found.communication_s == pytest.approx(0.25)
    assert found.hidden_communication is not None
    assert found.hidden_communication.least_ratio == pytest.approx(0.5)


def test_time_with_work_and_steps_comes_back_from_the_api_as_it_was(site: Site) -> None:
    site.cluster.works, site.cluster.has_sections = (1e15, "NVIDIA H200"), True
    site.run(100.0)

    there = msgspec.json.encode(view_time(site.time()))
    back = time_of_view(msgspec.json.decode(there, type=wire.WatchedTime))

    assert back.work == site.time().work != ()
    assert anatomy_of([back]) == anatomy_of([site.time()])


def test_records_of_work_are_bounded_and_add_up_to_the_same() -> None:
    work = [WorkTime(float(at), at + 1.0, 4, 2.0, 3.0, 0.0, "bf16", "H100") for at in range(401)]
    steps = [StepsTime(float(at), 1, 4, 8, 4.0, 1.0, 1.0, 1.0, 1.0, 0.0) for at in range(401)]

    fewer, fewer_steps = condense_work(work, 200), condense_steps(steps, 200)

    assert (len(fewer), len(fewer_steps)) == (201, 201)
    assert sum(one.tokens for one in fewer) == 3.0 * 401
    assert sum(one.device_s for one in fewer) == 4.0 * 401
    assert fewer[-1] == work[-1]
    assert sum(one.step_s for one in fewer_steps) == 4.0 * 401
    assert divide_steps(fewer_steps) == divide_steps(steps)


def series(text: str, name: str) -> float | None:
    found = re.search(rf"^rankmend_controller_{name}{{.*}} (\S+)$", text, re.M)
    return None if found is None else float(found[1])
