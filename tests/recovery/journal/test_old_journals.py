"""Journals that an older rankmend wrote still mean what they meant then.

tests/fixtures/journals/README.md tells how the journals and the expected results were made.
"""

import json
from typing import Any

import msgspec
import pytest

from detectors.finding import Blame, Finding, Kind, Severity
from recovery.controller.cluster.cluster_ledger import fold_cluster
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.controller.cluster.gate import PlanRequest
from recovery.controller.cluster.plan_verdict import judge, unusable
from recovery.controller.job.nodes import JobNodes, orders_for
from recovery.controller.job.planner import Scene, plan
from recovery.controller.job.settings import JobSettings
from recovery.journal.ledger import Ledger
from recovery.journal.limits import PlanStep
from recovery.journal.node_records import LeaveCause, LeaveReason, cut_off_from
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict
from recovery.messages.codec import symptom_of
from recovery.messages.exchange import Order, Report
from tests.support.old_journals import JOBS, read

pytestmark = pytest.mark.safety


def plain(value: object) -> Any:
    value = msgspec.to_builtins(value, str_keys=True)
    return json.loads(json.dumps(value))


def state_as_then(ledger: Ledger) -> dict[str, Any]:
    """Return the state in the fields that it had then; the README lists what is another now."""
    state: dict[str, Any] = plain(ledger)
    state["restarts_without_progress"] = ledger.restarts_without_progress
    state["restores"] = [[identity, len(faults)] for identity, faults in ledger.restores]
    if ledger.errors is not None:
        state["errors"]["signature"] = ledger.errors.symptom.text
    state["commands"] = {key: acted.result for key, acted in ledger.commands.items()}
    return state


def in_order(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, **{name: sorted(state[name]) for name in _SETS if name in state}}


_SETS = ("telling_ranks", "rendezvous_used", "taken_back")


def differences(then: object, now: object, path: str = "") -> list[str]:
    """Return where what was there then is missing or another now; what was added since is no matter."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            line
            for name, value in then.items()
            for line in differences(value, now.get(name, "<gone>"), f"{path}.{name}")
        ]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [
            line
            for place, (one, other) in enumerate(zip(then, now, strict=True))
            for line in differences(one, other, f"{path}[{place}]")
        ]
    return [] if then == now else [f"{path}: {then!r} then, {now!r} now"]


def test_there_is_a_journal_for_each_way_a_job_can_fail() -> None:
    assert len(JOBS) >= 85


@pytest.mark.parametrize("name", JOBS)
def test_an_old_journal_folds_to_the_state_that_it_had(name: str) -> None:
    journal = read(name)
    *_, (_line, ledger) = journal.states()
    expected = {**journal.head["state"], **journal.head.get("state_today", {})}

    assert differences(in_order(expected), in_order(state_as_then(ledger))) == []


@pytest.mark.parametrize("name", JOBS)
def test_each_state_of_an_old_journal_gives_the_orders_that_it_gave(name: str) -> None:
    journal, expected = read(name), None
    settings = journal.settings

    for line, ledger in journal.states():
        expected = line.get("orders", expected)
        orders = {order.node or "-": view_of(order) for order in orders_for(ledger, settings)}
        if settings.own_node and not ledger.placement:  # its only node has to join first today
            assert all(ranks == [] for _attempt, ranks, *_rest in expected.values())
            expected_now = {}
        else:
            expected_now = expected
        assert orders == expected_now, f"record {line['n']}"


@pytest.mark.parametrize("name", JOBS)
def test_each_open_incident_of_an_old_journal_gives_the_plans_that_it_gave(name: str) -> None:
    journal, expected = read(name), None

    for line, ledger in journal.states():
        expected = line.get("plans_today", line.get("plans", expected))
        assert plans_of(ledger) == _held_today(expected, ledger), f"record {line['n']}"


@pytest.mark.parametrize("name", JOBS)
def test_the_nodes_that_come_back_to_an_old_journal_are_those_that_came_back(name: str) -> None:
    journal, expected = read(name), None
    settings = journal.settings

    for line, ledger in journal.states():
        expected = line.get("rejoins", expected)
        assert nodes_that_join(ledger, settings) == expected, f"record {line['n']}"


def test_an_old_journal_of_the_cluster_folds_to_the_state_that_it_had_and_judges_the_same() -> None:
    journal = read("cluster")
    now_s = journal.head["now_unix_s"]
    ledger = fold_cluster(journal.entries())

    assert differences(journal.head["state"], plain(ledger)) == []
    nodes = [f"n{number}" for number in range(10)]
    assert [node for node in nodes if unusable(node, ledger, now_s)] == journal.head["unusable"]
    judgements = {**journal.head["judged"], **journal.head["judged_today"]}
    for asked, judgement in judgements.items():
        signature, step, standing, approved_by, job_id = asked.split("/")
        request = PlanRequest(
            job_id,
            "i-99",
            1,
            PlanStep(step),
            finding_of(signature),
            ("n9",) if step == "move" else (),
            4,
            is_standing=standing == "standing",
            approved_by=None if approved_by == "-" else approved_by,
        )
        answer = judge(request, "train", ledger, ClusterPolicy(), now_s)
        assert answer.judgement.value == judgement, asked


def finding_of(signature: str) -> Finding:
    return Finding(
        Kind.RANK_FAILED,
        Severity.CRITICAL,
        Blame.RANK,
        "rank 3 failed first: SIGKILL",
        "job-1",
        1,
        "n1",
        (3,),
        (),
        1.0,
        symptom=symptom_of(signature),
    )


def view_of(order: Order) -> list[Any]:
    restore = None if order.restore is None else [order.restore.path, order.restore.step]
    return [
        order.attempt,
        list(order.ranks),
        order.world_size,
        order.group_rank,
        order.group_count,
        order.stop.value,
        order.grace_s,
        restore,
        order.restarts,
        order.collect,
        order.collect_s,
        order.launcher_id,
        [peer.node for peer in order.peers],
        order.lease_s,
        order.finds_checkpoints,
        order.reads_hardware,
        [[told.kind, list(told.ranks), told.section, told.cause] for told in order.findings],
        order.revision,
    ]


def plans_of(ledger: Ledger) -> dict[str, list[Any]] | None:
    """Return what is planned on each further input: what is found, and what there is to run on."""
    incident = ledger.incident
    if incident is None:
        return None
    finding, plans = incident.last_failure.finding, {}
    for found, candidates in CANDIDATES.items():
        for place, scene in scenes_of(ledger).items():
            made = plan(finding, ledger, incident.policy, candidates, scene)
            restore = made.choice.restore if made.choice is not None else None
            path = None if restore is None else restore.path
            plans[f"{found}/{place}"] = [made.step.value, list(made.without), path]
    return plans


def _held_today(
    expected: dict[str, list[Any]] | None, ledger: Ledger
) -> dict[str, list[Any]] | None:
    """Return the plans with those that are held today: a recovery beside torn checkpoints alone."""
    is_start = ledger.is_resumed or (not ledger.has_ordered and not ledger.members)
    if expected is None or is_start:
        return expected
    begins, held = [PlanStep.RESTART_IN_PLACE.value, [], None], [PlanStep.ESCALATE.value, [], None]
    return {
        name: held if name.startswith("torn/") and made == begins else made
        for name, made in expected.items()
    }


def _checkpoint(
    path: str, step: int, modified_unix_s: float, *, is_valid: bool = True
) -> CheckpointVerdict:
    candidate = Candidate(path, step, CheckpointFormat.NPZ, 1000, modified_unix_s)
    return CheckpointVerdict(candidate, is_valid, "whole" if is_valid else "torn")


CANDIDATES = {
    "unknown": None,
    "none": (),
    "valid": (_checkpoint("/x/9", 100_000, 2e9), _checkpoint("/x/8", 8, 1.0)),
    "torn": (_checkpoint("/x/9", 100_000, 2e9, is_valid=False),),
    "old": (_checkpoint("/x/0", 0, 1.0),),
}


def scenes_of(ledger: Ledger) -> dict[str, Scene]:
    nodes = tuple(place.node for place in ledger.placement)
    if len(nodes) < 2:
        return {"one": Scene()}
    size = len(nodes)
    silent = {nodes[0]: LeaveReason(LeaveCause.SILENT)}
    cut_off = {nodes[-1]: cut_off_from([nodes[0]])}
    return {
        "all": Scene(nodes, 1, (size,)),
        "silent": Scene(nodes, 1, (size,), silent),
        "silent_short": Scene(nodes, 0, (size, size - 1), silent),
        "cut_off": Scene(nodes, 1, (size,), {}, cut_off),
        "cut_off_short": Scene(nodes, 0, (size,), {}, cut_off),
    }


class NoOrders:
    def send(self, order: Order) -> None:
        pass


def nodes_that_join(ledger: Ledger, settings: JobSettings) -> list[str]:
    """Return the nodes that have to join anew when their launchers on record report."""
    names = []
    for node, member in sorted(ledger.members.items()):
        nodes = JobNodes(settings, NoOrders())
        nodes.start(0.0)
        report = Report(
            version=1,
            node=node,
            boot_id=member.boot_id,
            job_id=settings.job_id,
            revision=0,
            attempt=0,
            ranks=(),
            empty_through=ledger.attempt,
            launcher_id=member.launcher_id,
            number=1,
            slots=member.slots,
            peer_endpoint=member.peer_endpoint,
            launcher_started_s=member.launcher_started_s,
        )
        nodes.hear(report, ledger, 10.0)
        names += [one.node for one in nodes.joining(ledger, 10.0)]
    return names
