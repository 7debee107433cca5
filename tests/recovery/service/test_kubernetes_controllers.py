"""Two controllers on one PostgreSQL and a real API server: whichever dies, each node is cordoned once, by the other one."""

import itertools
import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rankmend.clock import SystemClock, read_boot_id
from recovery.journal.postgres.desk_journal import DeskJournal
from recovery.journal.slurm_records import SlurmOutcome
from recovery.schedulers.kubernetes.client import KubernetesClient
from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.schedulers.kubernetes.pod_work import PodWork
from recovery.schedulers.slurm.desk import RequestDesk
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from tests.support.controllers import configure, controller_process
from tests.support.eventually import DEADLINE_S, eventually, fault_lasts
from tests.support.kubernetes import Cluster
from tests.support.postgres import PostgresServer, connected

pytestmark = [pytest.mark.site, pytest.mark.safety]
KILLS = 2


def test_kill_9_of_the_one_that_works_on_kubernetes_cordons_no_node_twice_and_forgets_none(
    tmp_path: Path, postgres: PostgresServer, kubernetes_cluster: Cluster
) -> None:
    name, chance = postgres.make_database(), random.Random(9)
    url = postgres.url(name, "controller")
    table = (
        "\n[kubernetes]\nenabled = true\nact = true\nnodes_drained_percent = 100.0\nnodes_drained_max = 100\n"
        f'drains_per_hour_max = 100\ntimeout_s = 2.0\nkubeconfig = "{kubernetes_cluster.folder}/admin.kubeconfig"\n'
    )
    nodes = [kubernetes_cluster.add_node(f"two-controllers-{number}") for number in range(KILLS)]
    first = configure(tmp_path / "a", url, lease_s=4.0, more=table)
    second = configure(tmp_path / "b", url, lease_s=4.0, like=first, more=table)
    version = kubernetes_cluster.core.list_node().metadata.resource_version
    with ExitStack() as stack:
        folders = itertools.cycle((first, second))
        running = [stack.enter_context(controller_process(next(folders))) for _ in range(2)]
        database, leases = stack.enter_context(connected(url))
        desk = _asking(DeskJournal(database, leases, "kubernetes", SystemClock(), read_boot_id()))

        for node in nodes:
            eventually(lambda: _holder(postgres, name) is not None, "one works on the desk")
            desk.bench.catch_up()
            desk.ask(SchedulerRequest(f"k/{node}", SchedulerAction.DRAIN, (node,), reason="bad"))
            fault_lasts(chance.uniform(0.0, 1.2))  # it dies at any place of its work
            (victim,) = [
                one for one in running if one.port_in(_holder(postgres, name) or "")
            ] or running[:1]
            victim.kill()
            running.remove(victim)
            running.append(stack.enter_context(controller_process(victim.folder)))

        def is_done() -> bool:
            desk.bench.catch_up()
            return not desk.ledger.open

        eventually(is_done, "all are cordoned")

    outcomes = [work.ended.outcome for work in desk.ledger.works.values() if work.ended]
    assert outcomes == [SlurmOutcome.DONE] * KILLS
    assert _cordons(kubernetes_cluster, version, nodes) == Counter(dict.fromkeys(nodes, 1))
    assert sorted(desk.ledger.ours) == sorted(nodes)
    epochs = postgres.ask(
        name, "SELECT epoch FROM rankmend.record WHERE journal = 'kubernetes' ORDER BY number"
    )
    assert [one for (one,) in epochs] == sorted(one for (one,) in epochs)


def _asking(journal: DeskJournal) -> RequestDesk:
    """Return a desk on which this process does not work."""
    limits = KubernetesLimits(enabled=True)
    client: Any = KubernetesClient(None)  # type: ignore[arg-type]
    return RequestDesk(
        journal, client, limits, SystemClock(), lambda bench: PodWork(bench, client, limits)
    )


def _holder(postgres: PostgresServer, name: str) -> str | None:
    """Return the address of the controller that works on the desk."""
    rows = postgres.ask(
        name,
        "SELECT c.url FROM rankmend.journal n JOIN rankmend.controller c ON c.controller_id = n.holder"
        " WHERE n.name = 'kubernetes' AND rankmend.is_alive(n.holder)",
    )
    return rows[0][0] if rows else None


def _cordons(cluster: Cluster, since: str, nodes: list[str]) -> Counter[str]:
    """Return how often each node has become unschedulable since this version of the cluster."""
    from kubernetes import watch

    found: Counter[str] = Counter()
    before = dict.fromkeys(nodes, False)
    last = cluster.add_node("two-controllers-last")  # what is told of it comes after all else
    stream = watch.Watch().stream(
        cluster.core.list_node, resource_version=since, timeout_seconds=int(DEADLINE_S)
    )
    for event in stream:
        node = event["object"]
        told, now = node.metadata.name, bool(node.spec.unschedulable)
        if told == last:
            return found
        if told in before:
            found[told] += now and not before[told]
            before[told] = now
    raise AssertionError(f"the watch ended before {last} was told of: {found}")
