"""Which shared parts of the fleet are known to be broken now."""

from dataclasses import replace

from detectors.formats.site.slurm_topology import parse_parts
from detectors.parts.fleet_parts import NO_PARTS, FleetPart, SharedKind
from detectors.parts.site_units import COOLANT_UNIT, UnitFault, UnitQuantity, UnitVerdict
from recovery.controller.cluster.active_alerts import ActiveAlert
from recovery.controller.cluster.alert_shares import Sender
from recovery.controller.cluster.broken_parts import find_broken_parts
from recovery.controller.cluster.incoming_alerts import AlertTarget

PARTS = parse_parts("SwitchName=l1 Nodes=a,b,c,d\nSwitchName=l2 Nodes=e,f,g,h")
LEAF1 = FleetPart(SharedKind.LEAF, "l1")
LEAK = UnitFault(UnitQuantity.LEAK)
LITTLE_FLOW = UnitFault(UnitQuantity.FLOW, 1.0, 2.0, is_of_peers=True)


def alert(name: str, node: str, severity: str = "critical") -> ActiveAlert:
    target = AlertTarget(f"{name}/{node}", name, node, "", "", (), severity, "watch")
    return ActiveAlert(target, "", (), (), 0.0, 0.0, 1, ())


def test_nodes_that_are_lost_together_break_the_switch_that_explains_them() -> None:
    lost = [alert("RankmendAgentDown", node) for node in "abc"]

    assert find_broken_parts(PARTS, set("abcdefgh"), lost) == {
        LEAF1: "is blamed: 3 of 4 nodes below it are lost"
    }
    assert not find_broken_parts(PARTS, set("abcdefgh"), lost[:2])
    assert not find_broken_parts(
        PARTS, set("abcdefgh"), [replace(lost[0], is_firing=False), *lost[1:]]
    )
    of_jobs = [replace(one, sender=Sender("team", is_of_jobs=True)) for one in lost]
    assert not find_broken_parts(PARTS, set("abcdefgh"), of_jobs), "its token is limited to jobs"
    assert not find_broken_parts(NO_PARTS, set("abcdefgh"), lost)


def test_a_critical_alert_whose_node_is_a_switch_accuses_the_switch() -> None:
    down = alert("SwitchDown", "l1")

    assert find_broken_parts(PARTS, (), [down]) == {LEAF1: "the alert SwitchDown accuses"}
    assert not find_broken_parts(PARTS, (), [alert("SwitchBusy", "l1", "warning")])
    assert not find_broken_parts(PARTS, (), [alert("GpuDown", "a")]), "of a node"


def test_a_rule_gone_mad_breaks_no_switch_and_no_doubted_alert_does() -> None:
    """Every spare would be barred, and each job would end at its next failure."""
    l1, l2 = alert("SwitchDown", "l1"), alert("SwitchDown", "l2")
    other = alert("SwitchLost", "l2")

    def found(*alerts: ActiveAlert, doubted: tuple[str, ...] = ()) -> set[str]:
        return {part.name for part in find_broken_parts(PARTS, (), alerts, (), doubted, 10.0)}

    assert found(l1, l2) == set()
    assert found(l1) == {"l1"}
    assert found(l1, other) == {"l1", "l2"}, "two rules"
    assert found(l1, replace(l2, sender=Sender("another"))) == {"l1", "l2"}, "two senders"
    assert found(l1, doubted=(l1.target.key,)) == set()
    lost = [alert("RankmendAgentDown", node) for node in "abc"]
    assert found(*lost, doubted=tuple(one.target.key for one in lost)) == set()


def test_a_coolant_unit_breaks_its_loop_once_it_harms_what_hangs_on_it() -> None:
    loop = FleetPart(SharedKind.COOLANT_LOOP, "cdu-1")
    dry = UnitVerdict(COOLANT_UNIT, "cdu-1", (LITTLE_FLOW,), nodes=("a",))

    assert not find_broken_parts(PARTS, (), (), [dry]), "nothing is hot yet"
    assert list(find_broken_parts(PARTS, (), (), [replace(dry, harmed=("a",))])) == [loop]
    assert find_broken_parts(PARTS, (), (), [replace(dry, faults=(LEAK,))]) == {
        loop: "is at fault: coolant unit cdu-1: it leaks; 1 node on it"
    }
