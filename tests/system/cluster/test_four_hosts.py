"""Four hosts, a controller, agents and launchers, all real: each is broken while one job trains on them.

The tests share one cluster and one long job, whose checkpoints depend on every step of every rank; the last
test ends the job and compares each checkpoint ever published with those of an undisturbed run.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.eventually import eventually, fault_lasts
from tests.support.faults.clock import WHY_NOT as WHY_NOT_CLOCK
from tests.support.faults.clock import FakeClock
from tests.support.faults.process import stop
from tests.support.hosts import Host, why_not
from tests.support.torch_here import needs_torch
from tests.system.cluster.bed import (
    DDP,
    KILL_BOUND_S,
    LEASE_S,
    LOCKSTEP,
    SILENT_S,
    Cluster,
    Entry,
    Training,
    Watch,
    running,
)
from tests.system.faults.conftest import run_undisturbed

pytestmark = [
    pytest.mark.site,
    pytest.mark.safety,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
RANKS = 6  # three nodes of two; the fourth is the spare
DAY_S = 86400.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), 4) as made:
        yield made


@pytest.fixture(scope="module")
def long_job(cluster: Cluster) -> Iterator[Training]:
    training = Training(cluster, "4", LOCKSTEP, [], ["--grace=10"], spares=1)
    training.arguments = [
        f"--checkpoint-dir={training.checkpoints}",
        f"--result={training.folder}/result.json",
        f"--until={training.folder}/enough",
        f"--published={training.folder}/published",
        "--steps=1000000",
        "--step-s=0.02",
    ]
    try:
        training.start(*cluster.nodes)
        with Watch(training.job_id) as watch:
            yield training
        assert watch.looks > 0
        assert watch.together == []
        assert watch.attempts >= {1}
    finally:
        training.close()


@pytest.fixture
def calm(long_job: Training) -> Training:
    """The job on three nodes, and the fourth as a spare; what an earlier test killed is started again."""
    nodes = {host.name: host for host in long_job.cluster.nodes}
    for name, process in list(long_job.launchers.items()):
        if process.poll() is not None:
            long_job.start(nodes[name])
        if long_job.cluster.agents[name].poll() is not None:
            long_job.cluster.start_agent(nodes[name])
    long_job.placed(after=0)
    job_id = long_job.job_id
    long_job.cluster.ask(
        lambda client: (
            all(
                one.heard_age_s is not None and one.heard_age_s < SILENT_S
                for one in client.job(job_id).nodes
            )
            and len(client.job(job_id).nodes) == 4
        ),
        "all four nodes are heard",
    )
    return long_job


def places(training: Training) -> tuple[list[Host], Host]:
    """Return the hosts that run ranks, and the spare."""
    used = training.placed(after=0)
    hosts = training.cluster.nodes
    (spare,) = [host for host in hosts if host.name not in used]
    return [host for host in hosts if host.name in used], spare


def newest_incident(story: list[Entry]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of the newest incident by their kind."""
    opened = max(entry["number"] for entry in story if entry["kind"] == "incident_opened")
    records: dict[str, list[dict[str, Any]]] = {}
    for entry in story:
        if entry["number"] >= opened:
            records.setdefault(entry["kind"], []).append(entry["record"])
    return records


def finding_of(incident: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = incident["incident_opened"][0]["failure"]["finding"]
    return found


def steps_of(incident: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [record["plan"]["step"] for record in incident["decided"]]


def kill_a_rank(training: Training, host: Host) -> int:
    rank, pid = next(iter(training.ranks_on(host).items()))
    os.kill(pid, signal.SIGKILL)
    return rank


def test_a_killed_rank_starts_again_where_it_was(calm: Training) -> None:
    before = calm.attempt
    used, _spare = places(calm)

    rank = kill_a_rank(calm, used[1])

    after = calm.placed(after=before)
    assert set(after) == {host.name for host in used}
    assert [process.poll() for process in calm.launchers.values()] == [None] * 4
    incident = newest_incident(calm.why())
    assert finding_of(incident)["ranks"] == [rank]
    assert finding_of(incident)["node"] == used[1].name
    assert steps_of(incident) == ["restart_in_place"]
    assert incident["attempt_ended"][0]["proofs"] == []  # every launcher has said it


def test_the_spare_takes_the_place_of_a_node_whose_launcher_was_killed(calm: Training) -> None:
    before = calm.attempt
    used, spare = places(calm)
    lost = used[0]
    was_there = calm.ranks_on(lost)

    calm.launchers[lost.name].kill()
    eventually(lambda: not calm.ranks_on(lost), "no rank outlives its launcher")

    after = calm.placed(after=before)
    assert len(was_there) == 2
    assert spare.name in after
    assert lost.name not in after
    incident = newest_incident(calm.why())
    assert steps_of(incident)[-1] == "move"
    (proof,) = incident["attempt_ended"][0]["proofs"]
    assert (proof["node"], proof["proof"]) == (lost.name, "last_word")  # no lease was waited for


@pytest.mark.real_fault("node lost")
def test_the_spare_takes_the_place_of_a_host_all_of_whose_processes_died(calm: Training) -> None:
    before = calm.attempt
    used, spare = places(calm)
    number = calm.last_number

    used[2].kill_processes()

    after = calm.placed(after=before)
    assert set(after) == {used[0].name, used[1].name, spare.name}
    records: dict[str, list[dict[str, Any]]] = {}  # on a busy machine of more than one incident
    for entry in calm.why():
        if entry["number"] > number:
            records.setdefault(entry["kind"], []).append(entry["record"])
    left = [one["node"] for one in records.get("node_left", [])]
    assert used[2].name in left, (records, calm.account)
    assert [proof["proof"] for proof in records["attempt_ended"][0]["proofs"]] == ["lease"]


def test_a_host_that_lost_power_and_comes_back_is_empty_by_its_new_boot(calm: Training) -> None:
    before = calm.attempt
    used, _spare = places(calm)
    boot_id = used[1].boot_id

    with used[1].power_off():
        pass
    calm.cluster.start_agent(used[1])
    calm.start(used[1])

    calm.placed(after=before)
    story = calm.why()
    joined = [entry["record"]["nodes"] for entry in story if entry["kind"] == "nodes_joined"][-1]
    assert [(one["node"], one["boot_id"]) for one in joined] == [(used[1].name, used[1].boot_id)]
    assert used[1].boot_id != boot_id
    proofs = newest_incident(story)["attempt_ended"][0]["proofs"]
    assert [proof for proof in proofs if proof["proof"] != "boot"] == []


def test_a_link_that_is_cut_for_less_than_the_lease_stops_nothing(calm: Training) -> None:
    before = calm.attempt
    used, _spare = places(calm)
    ranks = calm.ranks_on(used[0])

    with calm.cluster.fleet.cut(used[0]):
        fault_lasts(1)
    calm.wait_step(calm.steps()[-1] + 50)

    assert calm.attempt == before
    assert calm.ranks_on(used[0]) == ranks


def test_a_host_that_reaches_its_peers_but_not_the_controller_trains_on(calm: Training) -> None:
    before = calm.attempt
    used, _spare = places(calm)
    ranks = calm.ranks_on(used[0])

    with calm.cluster.fleet.partition([used[0]], [calm.cluster.home]):
        fault_lasts(LEASE_S + KILL_BOUND_S)
    calm.wait_step(calm.steps()[-1] + 50)

    assert calm.attempt == before
    assert calm.ranks_on(used[0]) == ranks


def test_two_hosts_that_cannot_reach_each_other_are_not_kept_together(calm: Training) -> None:
    before = calm.attempt
    used, spare = places(calm)

    with calm.cluster.fleet.partition([used[0]], [used[1]]):
        after = calm.placed(after=before)

        pair = {used[0].name, used[1].name}  # nobody knows whose cable it is
        assert len(pair & set(after)) == 1
        assert set(after) - pair == {used[2].name, spare.name}
        incident = newest_incident(calm.why())
        (gone,) = pair - set(after)
        assert [left["node"] for left in incident["node_left"]] == [gone]
        assert "cut off from" in incident["node_left"][0]["reason"]


@pytest.mark.real_fault("partition")
def test_ranks_of_a_host_that_is_cut_off_are_gone_before_others_take_their_place(
    calm: Training,
) -> None:
    before = calm.attempt
    used, spare = places(calm)
    cut = used[0]  # the ranks' meeting place, too

    with calm.cluster.fleet.partition([cut]):
        after = calm.placed(after=before)
        assert calm.ranks_on(cut) == {}

        assert set(after) == {used[1].name, used[2].name, spare.name}
        assert calm.launchers[cut.name].poll() is None  # it waits for the controller
    incident = newest_incident(calm.why())
    assert incident["node_left"][0]["node"] == cut.name
    assert [(p["node"], p["proof"]) for p in incident["attempt_ended"][0]["proofs"]] == [
        (cut.name, "lease")
    ]


@pytest.mark.real_fault("controller's disk full")
def test_a_full_disk_of_the_controller_in_mid_incident_starts_nothing_that_is_not_on_record(
    calm: Training,
) -> None:
    cluster, job_id = calm.cluster, calm.job_id
    before, last = calm.attempt, calm.last_number
    used, _spare = places(calm)

    with stop(
        calm.launchers[used[0].name]
    ):  # so that the incident can't be over before the disk is full
        kill_a_rank(calm, used[1])
        calm.wait_told("incident_opened", last)
        full = cluster.home.fill(cluster.state)
    with full:
        cluster.ask(lambda client: client.job(job_id).job.problem, "the full disk is told")
        cluster.kill_controller()
        cluster.start_controller()
        problem = cluster.ask(lambda client: client.jobs()[0].problem, "it is told again")
        assert "full" in problem
        assert calm.attempts_running() <= {before}

    calm.placed(after=before)
    assert calm.attempt == before + 1, calm.account
    told = [entry["kind"] for entry in calm.why() if entry["number"] > last]
    assert told.count("incident_opened") == 1
    assert told.count("attempt_started") == 1


@pytest.mark.real_fault("records torn off")
def test_records_that_a_crash_tore_off_do_no_harm(calm: Training) -> None:
    before, last = calm.attempt, calm.last_number
    used, _spare = places(calm)
    journal = calm.journal
    kill_a_rank(calm, used[1])
    calm.wait_told("attempt_started", last)

    calm.cluster.kill_controller()
    log = journal.with_name("journal.db-wal")
    os.truncate(log, log.stat().st_size - 100)  # within the last frame
    calm.cluster.start_controller()

    calm.placed(after=before)
    told = [entry for entry in calm.why() if entry["number"] > last]
    assert [entry["kind"] for entry in told].count("tail_cut") == 1
    assert [entry["kind"] for entry in told].count("incident_opened") == 1
    heard = [one["record"]["attempt"] for one in told if one["kind"] == "attempt_heard"]
    started = [one["record"]["attempt"] for one in told if one["kind"] == "attempt_started"]
    assert set(heard).isdisjoint(started)  # what was ordered before the crash is not ordered again


@pytest.mark.real_fault("wall clock jumps")
@pytest.mark.skipif(bool(WHY_NOT_CLOCK), reason=WHY_NOT_CLOCK or "-")
def test_a_wall_clock_that_jumps_by_a_day_in_mid_incident_changes_nothing(calm: Training) -> None:
    cluster, job_id = calm.cluster, calm.job_id
    clock = FakeClock(cluster.home.state / "clock")
    cluster.kill_controller()
    cluster.start_controller(clock)

    for offset_s in (DAY_S, -DAY_S):
        before, last = calm.attempt, calm.last_number
        used, spare = places(calm)
        kill_a_rank(calm, used[1])
        calm.wait_told("incident_opened", last)
        with clock.jump(offset_s):
            assert spare.name not in calm.placed(after=before)
            assert calm.attempt == before + 1, calm.account
        (incident,) = [
            one
            for one in cluster.ask(lambda client: client.incidents(job_id), "incidents")
            if one.attempt == before
        ]
        assert incident.outcome == "recovered"
        assert incident.total_s is not None
        assert 0 < incident.total_s < DAY_S / 2
        assert all(0 <= (part or 0) < DAY_S / 2 for part in incident.phases.values())


@pytest.mark.real_fault("controller killed")
def test_a_controller_that_is_killed_in_mid_recovery_finishes_it_once(calm: Training) -> None:
    cluster = calm.cluster
    begun = calm.last_number
    for wanted in ("decided", "attempt_ended"):  # the tests above kill it at other records
        before, last = calm.attempt, calm.last_number
        used, _spare = places(calm)
        kill_a_rank(calm, used[1])
        calm.wait_told(wanted, last)
        cluster.kill_controller()
        cluster.start_controller()
        fault_lasts(random.uniform(0, 1.5))  # until a moment that nobody has chosen
        cluster.kill_controller()
        cluster.start_controller()

        calm.placed(after=before)
        assert calm.attempt == before + 1, calm.account
    told = [entry for entry in calm.why() if entry["number"] > begun]
    kinds = [entry["kind"] for entry in told]
    starts = [entry["record"]["attempt"] for entry in told if entry["kind"] == "attempt_started"]
    epochs = [entry["record"]["epoch"] for entry in told if entry["kind"] == "launcher_started"]
    assert starts == sorted(set(starts))
    assert epochs == sorted(set(epochs))
    assert len(starts) == 2
    # A controller that is killed at once may not have taken up the job.
    assert 2 <= len(epochs) <= 4
    assert kinds.count("incident_opened") == 2


def test_agents_show_the_ranks_on_their_host_and_are_believed_by_the_controller(
    calm: Training,
) -> None:
    used, spare = places(calm)
    job_id = calm.job_id

    def page(host: Host) -> str:
        return host.run(["curl", "-sf", f"http://{host.address}:9476/metrics"]).stdout

    for host in used:
        for rank in calm.ranks_on(host):
            eventually(
                lambda host=host, rank=rank: (
                    f'job_id="{job_id}"' in (shown := page(host)) and f'rank="{rank}"' in shown
                ),
                f"rank {rank} on the page of {host.name}",
            )
    assert f'job_id="{job_id}"' not in page(spare)


ROOT = Path(__file__).parents[3]
COMPARED = """
import sys, torch
from tests.system.faults.jobs.ddp import undisturbed
from tests.support.torch_here import needs_torch
got, want = torch.load(sys.argv[1], weights_only=True), undisturbed()
assert got.keys() == want.keys()
assert all(torch.equal(got[name], want[name]) for name in want)
"""


def test_a_ddp_job_over_two_hosts_ends_with_the_parameters_of_an_undisturbed_run(
    cluster: Cluster,
) -> None:
    needs_torch()
    training = Training(cluster, "2", DDP, [], slots=1, plane=1)
    result = training.folder / "result.pt"
    training.arguments = [f"--checkpoint-dir={training.checkpoints}", f"--result={result}"]
    first, second = cluster.nodes[:2]
    training.start(first, second)
    try:
        training.wait_step(10)
        rank = kill_a_rank(training, second)

        assert training.wait_ends(first.name, second.name) == [0, 0], training.output
        story = training.why()
        assert finding_of(newest_incident(story))["ranks"] == [rank]
        starts = [entry["record"] for entry in story if entry["kind"] == "attempt_started"]
        assert len(starts) == 2
        assert {start["rendezvous"]["address"] for start in starts} <= {
            host.addresses[1].ip for host in (first, second)
        }
    finally:
        training.close()
    subprocess.run([sys.executable, "-c", COMPARED, str(result)], cwd=ROOT, check=True)


def test_the_job_ends_with_the_parameters_of_an_undisturbed_run(
    calm: Training, tmp_path: Path
) -> None:
    (calm.folder / "enough").touch()

    assert calm.wait_ends(*calm.launchers) == [0, 0, 0, 0], calm.output
    last = calm.steps()[-1]
    arguments = ["--step-s=0", f"--steps={last}"]
    expected = run_undisturbed(tmp_path, *arguments, world_size=RANKS)
    assert Path(calm.folder / "result.json").read_text() == (tmp_path / "result.json").read_text()
    assert expected["step"] == last
    for step in calm.steps():
        name = f"step-{step:08d}.npz"
        with (
            np.load(calm.checkpoints / name) as got,
            np.load(tmp_path / "checkpoints" / name) as want,
        ):
            assert np.array_equal(got["state"], want["state"]), f"step {step}"
    published = (calm.folder / "published").read_text().split("\n")[:-1]
    attempts = [int(line.split()[0]) for line in published]
    assert attempts == sorted(attempts)  # no older attempt has published after a newer one
    assert [entry["kind"] for entry in calm.why()][-1] == "job_ended"
