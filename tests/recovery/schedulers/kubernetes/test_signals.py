"""What other tools say of a node is taken as alerts by one table, which the documentation has, too."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recovery.controller.cluster.cluster_limits import AlertRules
from recovery.controller.cluster.incoming_alerts import IncomingAlert, target_of
from recovery.service.kubernetes_service import SIGNALS, KubernetesSignals, SignalKind, read_signals
from tests.recovery.schedulers.slurm.fakes import MovedClock

PAGE = Path(__file__).parents[4] / "docs/use/kubernetes.md"
XID = {
    "type": "SysLogsXIDError",
    "status": "True",
    "message": "[79] GPU has fallen off the bus - RecommendedAction: RESTART_BM",
}


def node(*conditions: Mapping[str, str], taints: tuple[str, ...] = ()) -> dict[str, Any]:
    spec = {"taints": [{"key": key, "value": "true", "effect": "NoSchedule"} for key in taints]}
    return {"spec": spec, "status": {"conditions": list(conditions)}}


def names(told: Mapping[str, Any]) -> list[str]:
    return [signal.name for signal, _text in read_signals(told)]


def test_conditions_that_are_true_and_taints_of_the_table_are_signals() -> None:
    told = node(
        XID,
        {"type": "KernelDeadlock", "status": "False"},
        {"type": "GpuMemWatch", "status": "Unknown"},
        {"type": "Ready", "status": "False"},
        {"type": "MemoryPressure", "status": "True"},
        taints=("AggregatedNodeHealth", "nvidia.com/gpu", "node.kubernetes.io/unschedulable"),
    )

    assert names(told) == ["SysLogsXIDError", "AggregatedNodeHealth"]


def test_a_taint_with_two_effects_is_one_signal() -> None:
    assert names(node(taints=("nvidia.com/gpu-error", "nvidia.com/gpu-error"))) == [
        "nvidia.com/gpu-error"
    ]


def test_a_node_without_conditions_or_with_null_says_nothing() -> None:
    assert names({}) == []
    assert names({"spec": {"taints": None}, "status": {"conditions": None}}) == []


class Site:
    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any] | None] = {"n1": node(), "n2": None}
        self.taken: list[IncomingAlert] = []
        self.signals = KubernetesSignals(
            self._read, lambda: list(self.nodes), self.taken.extend, MovedClock()
        )

    def _read(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        return {name: told for name in names if (told := self.nodes[name]) is not None}

    def look(self) -> list[IncomingAlert]:
        self.taken.clear()
        self.signals.look()
        return list(self.taken)


def test_a_signal_accuses_its_node_until_it_is_gone() -> None:
    site = Site()
    quiet = site.look()
    site.nodes["n1"] = node(XID)
    (fires,) = site.look()
    (still,) = site.look()
    site.nodes["n1"] = node()
    (ended,) = site.look()

    target = target_of(fires, AlertRules())
    assert quiet == []
    assert (target.node, target.severity, target.action) == ("n1", "critical", "reset_gpu")
    assert (target.alertname, target.device) == ("RankmendNodeSignal", "SysLogsXIDError")
    assert fires.annotations["summary"] == (
        "NVSentinel says that the kernel log has a fatal XID (SysLogsXIDError: "
        "[79] GPU has fallen off the bus - RecommendedAction: RESTART_BM)"
    )
    assert still.is_firing
    assert (ended.is_firing, target_of(ended, AlertRules()).key) == (False, target.key)


def test_words_from_outside_are_bounded_and_printable() -> None:
    site = Site()
    site.nodes["n1"] = node({**XID, "message": "\x1b[31m" + "x" * 10_000})

    (fires,) = site.look()

    assert len(fires.annotations["summary"]) < 500
    assert "\x1b" not in fires.annotations["summary"]


def test_every_name_is_there_once_and_the_page_has_the_table() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]

    told = [
        f"| `{one.name}` | {one.kind.value}, {one.source} | {one.severity.value} | `{one.action.value}` | {one.says} |"
        for one in SIGNALS
    ]
    assert len({(one.kind, one.name) for one in SIGNALS}) == len(SIGNALS)
    assert [row for row in rows if row.count("|") == 6] == told
    assert {one.kind for one in SIGNALS} == set(SignalKind)
