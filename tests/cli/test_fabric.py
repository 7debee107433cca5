"""`rankmend fabric`: what people and scripts see of a kept result."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from detectors.fabric.collisions import TracedFlow, plan_ports
from detectors.fabric.slow_part import judge
from rankmend.cli.labs.fabric import fabric
from recovery.lab.fabric.fabric_messages import PauseRate, PortRates
from recovery.lab.fabric.fabric_report import (
    CollectiveFigure,
    FabricReport,
    PathTrial,
    RunningFlow,
    RunningFlows,
    keep,
    write_metrics,
)
from tests.detectors.fabric.simulated_network import SimulatedNetwork, make_network

pytestmark = pytest.mark.process


@pytest.fixture
def report() -> FabricReport:
    simulated = SimulatedNetwork(
        make_network(16), 1, lambda s, r, _rail, _path: 0.4 if 5 in (s, r) else 1.0
    )
    simulated.search()
    flows = [
        TracedFlow(name, (name, "t"), 1, {1: ("leaf", "s1"), 2: ("leaf", "s2")}) for name in "ab"
    ]
    return FabricReport(
        kind="find",
        at_unix_s=1_700_000_000.0,
        network=simulated.network,
        readings=tuple(simulated.readings),
        verdict=judge(simulated.network, simulated.readings),
        collectives=(CollectiveFigure("all_reduce", 1 << 20, 1e-3, 2e9, 9e-4, 8e-4),),
        preferred_order=simulated.network.nodes,
        paths=PathTrial(plan_ports(flows), (1e9, 1e9), (2e9, 2e9)),
        absent=("n99",),
    )


def test_kept_result_is_shown_with_its_verdict(report: FabricReport, tmp_path: Path) -> None:
    path = keep(report, tmp_path / "fabric")

    result = CliRunner().invoke(fabric, ["show", str(path)])

    assert result.exit_code == 0, result.stderr
    assert "Slow node n5: takes 2." in result.output
    assert "did not answer, so not judged: n99" in result.output
    assert "2 flows share the link to s1, while s2 carry none: a, b" in result.output
    assert "throughput of 2 flows: 2 GB/s, 4 GB/s with the plan" in result.output


def test_script_gets_every_reading(report: FabricReport, tmp_path: Path) -> None:
    path = keep(report, tmp_path / "fabric")

    page = json.loads(CliRunner().invoke(fabric, ["show", str(path), "--json"]).output)

    assert len(page["readings"]) == len(report.readings)
    assert [(part["kind"], part["name"]) for part in page["verdict"]["parts"]] == [("node", "n5")]


def test_history_of_a_node_names_what_it_was_accused_of(
    report: FabricReport, tmp_path: Path
) -> None:
    keep(report, tmp_path / "fabric")

    def history(node: str, *words: str) -> "object":
        return CliRunner().invoke(fabric, ["history", node, "--state-dir", str(tmp_path), *words])

    (record,) = json.loads(history("n5", "--json").output)  # type: ignore[attr-defined]
    assert record["accused"] == ["node n5"]
    assert "slow node n5" in history("n5").output  # type: ignore[attr-defined]
    assert history("n77").exit_code != 0  # type: ignore[attr-defined]


def test_broken_file_in_the_history_is_named_and_hides_no_other(
    report: FabricReport, tmp_path: Path
) -> None:
    keep(report, tmp_path / "fabric")
    broken = tmp_path / "fabric" / "fabric-1700000000-1.json"
    broken.write_text('{"kind": "find"')

    result = CliRunner().invoke(fabric, ["history", "n5", "--state-dir", str(tmp_path)])

    assert result.exit_code == 0
    assert "slow node n5" in result.output
    assert f"left out: {broken} is not a report" in result.stderr


def test_metrics_name_the_slow_part(report: FabricReport, tmp_path: Path) -> None:
    write_metrics(report, tmp_path / "fabric.prom")

    text = (tmp_path / "fabric.prom").read_text(encoding="utf-8")
    assert 'rankmend_fabric_slow_part_delay_ratio{name="n5",part="node"} 2.' in text
    assert (
        'rankmend_fabric_node_rate_bytes_per_second{direction="sends",peer_node="n0",transport="tcp"}'
        in text
    )
    assert "rankmend_fabric_verdict_clear 1.0" in text


def test_heat_map_is_written_in_the_format_of_its_name(
    report: FabricReport, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    path = keep(report, tmp_path / "fabric")

    result = CliRunner().invoke(fabric, ["show", str(path), "--plot", str(tmp_path / "map.png")])

    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_heat_map_that_cannot_be_written_hides_no_verdict_and_leaves_nothing_behind(
    report: FabricReport, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    path = keep(report, tmp_path / "fabric")

    for name in ("map.txt2", "no/such/folder.png"):
        result = CliRunner().invoke(fabric, ["show", str(path), "--plot", str(tmp_path / name)])

        assert result.exit_code == 2
        assert "Slow node n5" in result.output
        assert f"no heat map in {tmp_path / name}" in result.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["fabric"]


def test_file_that_is_no_result_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{")

    result = CliRunner().invoke(fabric, ["show", str(tmp_path / "x")])

    assert result.exit_code == 2
    assert "is not a report of rankmend fabric" in result.stderr


def test_node_without_a_place_is_told_what_to_give() -> None:
    result = CliRunner(env={"RANK": None, "WORLD_SIZE": None, "SLURM_JOB_ID": None}).invoke(
        fabric, ["test", "find"]
    )

    assert result.exit_code == 2
    assert "--nnodes" in result.stderr


PAUSES = (PauseRate("3", True, 300.0), PauseRate("", False, 2.0))


def test_flows_of_programs_are_shown_with_what_they_lose_and_what_helps(
    report: FabricReport, tmp_path: Path
) -> None:
    traced = [
        TracedFlow(name, (name, "t"), 1, {1: ("leaf", "s1"), 2: ("leaf", "s2")}) for name in "ab"
    ]
    running = RunningFlows(
        flows=(RunningFlow("n1 -> n2", "udp", "python3", 0xEE68, None),),
        plan=plan_ports(traced),
        untraced=("n1 -> n3",),
        reasons=("n1: Operation not permitted",),
        unpaired=2,
        ports=(("n1", PortRates("eth0", 1e9, 2e9, 30.0, 20.0, 10.0, PAUSES)),),
    )
    bare = FabricReport("flows", report.at_unix_s, report.network, running=running)
    path = keep(bare, tmp_path / "fabric")

    told = CliRunner().invoke(fabric, ["show", str(path)])

    assert told.exit_code == 0, told.output
    assert "2 flows share the link to s1, while s2 carry none: a, b" in told.output
    assert "50% of a link, 100% if other ports spread them: 50% is lost" in told.output
    assert "NCCL_IB_QPS_PER_CONNECTION" in told.output
    assert "n1 eth0: congested" in told.output
    assert "n1 eth0: received 300 pauses of priority 3 each second: the switch" in told.output
    assert "n1 eth0: sent 2 pauses of the whole link each second: this node takes" in told.output
    assert "2 queue pairs are not judged" in told.output
    assert "can't trace: n1: Operation not permitted" in told.output
