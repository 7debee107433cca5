"""Hosts with the checkpoint folder each on its own disk, and a job of which each rank saves its part there."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.hosts import Host, why_not
from tests.system.cluster.bed import Cluster, Training, running
from tests.system.faults.harness import JOBS

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), 3) as made:
        yield made


def start(
    cluster: Cluster, nnodes: str, *hosts: Host, spares: int = 0, stuck: str = ""
) -> Training:
    training = Training(cluster, nnodes, JOBS / "sharded.py", [], spares=spares)
    training.arguments = [
        f"--stuck={stuck}",
        f"--checkpoint-dir={training.checkpoints}",
        "--layout=nvrx",
        f"--result={training.folder}/result.json",
        f"--until={training.folder}/enough",
    ]
    training.checkpoints.mkdir(parents=True)
    for host in hosts:
        disk(training, host).mkdir()
        host.run(["mount", "--bind", disk(training, host), training.checkpoints])
    training.start(*hosts)
    return training


def disk(training: Training, host: Host) -> Path:
    """Return what the host finds at the path of the checkpoints."""
    return host.state / f"disk-{training.name}"


def wait_saved(training: Training, host: Host, step: int) -> None:
    """Wait until a part of this step or a later one lies on the host's own disk."""

    def is_saved() -> bool:
        found = disk(training, host).glob("session/*/iter_*_local.pt")
        return any(int(path.name.split("_")[1]) >= step for path in found)

    eventually(is_saved, lambda: f"step {step} on {host.name}\n{training.account}")


def told(training: Training, kind: str) -> list[dict[str, Any]]:
    """Return what is on record of this kind."""
    job_id = training.job_id
    lines = training.cluster.ask(lambda client: client.story(job_id).lines, "the story")
    return [json.loads(bytes(one.record)) for one in lines if one.kind == kind]


def test_each_node_restores_its_own_part(cluster: Cluster) -> None:
    h1, h2, _h3 = cluster.nodes
    training = start(cluster, "2", h1, h2)
    try:
        training.placed(after=0)
        wait_saved(training, h2, 40)

        os.kill(next(iter(training.ranks_on(h2).values())), signal.SIGKILL)
        training.placed(after=1)
        (training.folder / "enough").touch()

        assert training.wait_ends("h1", "h2") == [0, 0], training.account
        choice = told(training, "attempt_started")[1]["choice"]
        assert choice["restore"]["path"] == f"{training.checkpoints}/session"
        assert choice["restore"]["step"] >= 20  # 40 where every rank had saved it
        assert "the parts of 4 ranks, on 2 nodes" in choice["reason"]
        assert not list(training.checkpoints.iterdir())  # nothing is shared
    finally:
        training.close()


@pytest.mark.parametrize("stuck", [0, 1, 2, 3])
def test_a_save_that_a_fault_cut_short_gives_way_to_the_one_before(
    cluster: Cluster, stuck: int
) -> None:
    h1, h2, _h3 = cluster.nodes
    training = start(cluster, "2", h1, h2, stuck=f"{stuck}:40")
    try:
        training.placed(after=0)
        there = training.ranks_on(h2)
        wait_saved(training, h1 if stuck in there else h2, 40)

        os.kill(there[min(there)], signal.SIGKILL)
        training.placed(after=1)
        (training.folder / "enough").touch()

        assert training.wait_ends("h1", "h2") == [0, 0], training.account
        choice = told(training, "attempt_started")[1]["choice"]
        assert choice["restore"]["step"] == 20
    finally:
        training.close()


def test_a_job_whose_part_went_with_its_node_is_held_and_says_what_is_missing(
    cluster: Cluster,
) -> None:
    training = start(cluster, "3", *cluster.nodes, spares=1)
    try:
        used = training.placed(after=0)
        lost = [host for host in cluster.nodes if host.name in used][1]
        (spare,) = [host for host in cluster.nodes if host.name not in used]
        rank = min(training.ranks_on(lost))
        wait_saved(training, lost, 40)
        (kept,) = [host for host in cluster.nodes if host.name in used and host is not lost]
        wait_saved(training, kept, 40)

        with lost.power_off():
            training.wait_told("plan_waits", after=0)
            reasons = [one["reason"] for one in told(training, "plan_waits")]

            missing = f"the part of rank {rank} is not on the disk of {spare.name}"
            assert any(missing in reason for reason in reasons), training.account
            assert len(told(training, "attempt_started")) == 1
    finally:
        training.close()
