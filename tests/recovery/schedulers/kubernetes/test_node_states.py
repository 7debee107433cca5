"""What Kubernetes says of a node, told to people: bounded, printable, and nothing of a node that is plainly ready."""

from typing import Any

import pytest

from rankmend.cli.screens.kubernetes_node_lines import render_kubernetes_nodes, say_state
from recovery.api import wire
from recovery.console.fleet import NodeInKubernetes, is_noted
from recovery.schedulers.kubernetes.node_states import SHOWN_MAX, SeenNode, read_state

READY = {"type": "Ready", "status": "True"}


def told(*conditions: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1"},
        "spec": spec,
        "status": {"conditions": [READY, *conditions]},
    }


def view(state: SeenNode) -> wire.KubernetesNodeView:
    return wire.KubernetesNodeView(
        state.node, state.is_cordoned, state.is_ours, state.cordoned_by, state.ready,
        list(state.conditions), list(state.taints), state.seen_unix_s,
    )  # fmt: skip


def whole(*states: wire.KubernetesNodeView, **more: Any) -> wire.SlurmView:
    given: dict[str, Any] = {"problem": "", "requests": [], "nodes": [], **more}
    return wire.SlurmView(enabled=True, acts=True, states=list(states), **given)


def test_a_ready_node_has_nothing_to_say() -> None:
    state = read_state(told({"type": "MemoryPressure", "status": "False"}), 1.0)

    assert state.is_plain
    assert say_state(view(state)) == ""
    assert not is_noted(view(state))


def test_cordon_conditions_and_taints_are_said_with_whose_they_are() -> None:
    node = told(
        {"type": "RankmendGpuLost", "status": "True", "message": "GPU 3 is lost"},
        unschedulable=True,
        taints=[
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            {
                "key": "node.kubernetes.io/out-of-service",
                "value": "nodeshutdown",
                "effect": "NoExecute",
            },
        ],
    )
    owner = {"manager": "kubectl-cordon", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
    node["metadata"]["managedFields"] = [owner]

    assert say_state(view(read_state(node, 1.0))) == (
        "cordoned by kubectl-cordon; RankmendGpuLost: GPU 3 is lost; "
        "tainted node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )


@pytest.mark.parametrize("status", ["False", "Unknown", None])
def test_a_node_that_is_not_ready_says_so(status: str | None) -> None:
    node = told()
    node["status"]["conditions"] = [] if status is None else [{"type": "Ready", "status": status}]

    assert say_state(view(read_state(node, 1.0))) == f"Ready is {status or 'not reported'}"


@pytest.mark.parametrize(
    "node", [{}, {"spec": None, "status": None}, {"status": {"conditions": None}}]
)
def test_an_object_without_parts_is_a_node_of_which_nothing_is_told(node: dict[str, Any]) -> None:
    assert say_state(view(read_state(node, 1.0))) == "Ready is not reported"


def test_hostile_words_are_bounded_and_printable() -> None:
    many = [
        {"type": f"T{n}\x1b", "status": "True", "message": "\x1b[2J" + "x" * 9000}
        for n in range(99)
    ]
    taints = [
        {"key": f"k{n}\u202e", "value": "v" * 9000, "effect": "NoSchedule"} for n in range(99)
    ]

    text = say_state(view(read_state(told(*many, taints=taints), 1.0)))

    assert len(text) < 2 * SHOWN_MAX * 170
    assert "\x1b" not in text
    assert "\u202e" not in text


def asked(key: str, node: str, outcome: str = "") -> wire.SlurmRequestView:
    return wire.SlurmRequestView(
        key, "evict", [node], "train", "it left", 1.0, outcome, f"text of {key}"
    )


def lines(given: wire.SlurmView | None) -> list[str]:
    return [str(one) for one in render_kubernetes_nodes(given)]


def test_status_has_what_is_under_way_and_counts_the_nodes_that_are_ready() -> None:
    fine = view(read_state(told(), 1.0))
    bad = view(read_state(told({"type": "DiskPressure", "status": "True"}), 1.0))
    given = whole(fine, bad, requests=[asked("open", "n1"), asked("over", "n1", "done")])

    said = lines(given)

    assert any("open: evict the pods of job train from n1: text of open" in one for one in said), (
        said
    )
    assert not any("text of over" in one for one in said)
    assert said[-2:] == [
        "n1 in Kubernetes: DiskPressure",
        "ready in Kubernetes, with nothing to say: 1 node",
    ]


def test_status_says_that_kubernetes_does_not_answer_and_nothing_where_it_is_off() -> None:
    off = wire.SlurmView(enabled=False, acts=False, problem="", requests=[], nodes=[])

    assert lines(whole(problem="no answer"))[0] == "Kubernetes does not answer: no answer"
    assert lines(off) == lines(None) == []


def test_a_nodes_page_has_its_state_and_its_requests_the_open_ones_first() -> None:
    given = whole(
        view(read_state(told(), 1.0)),
        requests=[asked("b", "n1", "done"), asked("a", "n1"), asked("c", "n2")],
    )

    found = NodeInKubernetes.of(given, "n1")

    assert found is not None
    assert found.state is not None
    assert [one.key for one in found.requests] == ["a", "b"]
    assert NodeInKubernetes.of(given, "n9") is None
