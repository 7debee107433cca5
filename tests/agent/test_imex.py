"""The IMEX domain: read only where one is configured, and a healthy idle node is never called unhealthy."""

from pathlib import Path

import pytest

from agent.collectors.imex import ImexCollector, parse_daemon, parse_domain
from agent.collectors.services import ServicesCollector, Systemctl
from agent.root_helper.program_runner import Program
from agent.root_helper.questions import ProgramOutcome, ProgramResult
from rankmend.errors import NoSourceError, SourceError

NODES = "10.0.0.1\n10.0.0.2\n"
ENABLED = "# NVIDIA IMEX configuration\nIMEX_CMD_ENABLED=1\nIMEX_CMD_PORT=50005\n"
LEGEND = """Connectivity Table Legend:
I - Invalid - Node wasn't reachable, no connection status available
D - Disconnected - Connection was lost, and clean up has been triggreed.
C - Connected - Ready for operation

3/25/2025 10:39:43.659
Nodes:
"""
UP = f"""{LEGEND}Node #0   - 10.0.0.1   - READY
Node #1   - 10.0.0.2   - READY

 Nodes From\\To  0   1
       0        C   C
       1        C   C
Domain State: UP
"""
DEGRADED = f"""{LEGEND}Node #* 0  - 10.0.0.1   - READY                - Version: 570.86.15
Node #1   - 10.0.0.2   - UNAVAILABLE          - Version: N/A

 Nodes From\\To  0   1
       0        C   I
       1        I   I
Domain State: DEGRADED
"""


class Node:
    """A node with an IMEX domain of two nodes whose daemon answers."""

    def __init__(self, folder: Path) -> None:
        self.root, self.procfs = folder, folder / "proc"
        self.answers = {"-q": "READY\n", "-N": UP}
        self.exit_code = 0
        self.is_installed = True
        self.write("etc/nvidia-imex/nodes_config.cfg", NODES)
        self.write("etc/nvidia-imex/config.cfg", ENABLED)
        self.write("dev/nvidia-caps-imex-channels/channel0", "")
        self.write("proc/1/comm", "systemd\n")
        self.write("proc/812/comm", "nvidia-imex\n")

    def write(self, place: str, text: str) -> None:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, program: Program) -> ProgramResult:
        if not self.is_installed:
            return ProgramResult("imex", ProgramOutcome.ABSENT, error="no nvidia-imex-ctl")
        output = self.answers[program.arguments[0]]
        return ProgramResult("imex", ProgramOutcome.ANSWERED, self.exit_code, output)

    def values(self) -> dict[str, float]:
        found = ImexCollector(self.root, self.procfs, self.run).collect()
        return {metric.name.removeprefix("rankmend_imex_"): metric.value for metric in found}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_domain_that_is_up_is_shown_with_its_nodes(node: Node) -> None:
    assert node.values() == {
        "nodes": 2,
        "channels": 1,
        "daemon_running": 1,
        "daemon_ready": 1,
        "daemon_info": 1,
        "domain_nodes_ready": 2,
        "domain_state_id": 2,
    }


def test_domain_that_a_node_has_left_is_degraded(node: Node) -> None:
    node.answers["-N"] = DEGRADED

    values = node.values()

    assert (values["domain_state_id"], values["domain_nodes_ready"]) == (1, 1)


@pytest.mark.parametrize(
    "nodes",
    [None, "", "\n\n", "# filled in by the prolog\n"],
    ids=["no file", "empty", "blank", "comment"],
)
def test_node_without_a_domain_is_not_asked(node: Node, nodes: str | None) -> None:
    if nodes is None:
        (node.root / "etc/nvidia-imex/nodes_config.cfg").unlink()
    else:
        node.write("etc/nvidia-imex/nodes_config.cfg", nodes)
    node.answers.clear()

    with pytest.raises(NoSourceError):
        node.values()


def test_list_of_nodes_may_be_another_file_but_none_of_a_shared_file_system(node: Node) -> None:
    node.write("etc/imex/nodes", "10.0.0.1\n10.0.0.2\n10.0.0.3\n")
    node.write("etc/nvidia-imex/config.cfg", "IMEX_NODE_CONFIG_FILE=/etc/imex/nodes\n")
    assert node.values()["nodes"] == 3

    node.write("shared/nodes", NODES)
    node.write("etc/nvidia-imex/config.cfg", "IMEX_NODE_CONFIG_FILE=/shared/nodes\n")
    with pytest.raises(NoSourceError):
        node.values()


def test_list_that_a_prolog_left_behind_says_nothing_of_the_daemon(node: Node) -> None:
    node.write("proc/812/comm", "bash\n")

    assert node.values() == {"nodes": 2, "channels": 1, "daemon_running": 0}


@pytest.mark.parametrize("config", [None, "", "IMEX_CMD_ENABLED=0\n"])
def test_daemon_without_its_command_service_has_no_known_state(
    node: Node, config: str | None
) -> None:
    if config is None:
        (node.root / "etc/nvidia-imex/config.cfg").unlink()
    else:
        node.write("etc/nvidia-imex/config.cfg", config)

    assert node.values() == {"nodes": 2, "channels": 1, "daemon_running": 1}


def test_daemon_that_waits_is_not_ready_and_its_domain_is_down(node: Node) -> None:
    node.answers = {"-q": "INITIALIZING\n", "-N": UP.replace("State: UP", "State: DOWN")}

    values = node.values()

    assert (values["daemon_ready"], values["domain_state_id"]) == (0, 0)


def test_program_that_fails_or_prints_something_else_is_a_broken_source(node: Node) -> None:
    node.exit_code = 1
    with pytest.raises(SourceError, match="exit code 1"):
        node.values()

    for text in ("", "Failed to connect to 10.0.0.1:50005\n", "ready"):
        with pytest.raises(SourceError, match="no state"):
            parse_daemon(text)
    with pytest.raises(SourceError, match="no state of the domain"):
        parse_domain(LEGEND)


def test_program_that_is_not_installed_leaves_the_state_unknown(node: Node) -> None:
    node.is_installed = False

    assert node.values() == {"nodes": 2, "channels": 1, "daemon_running": 1}


def test_state_of_the_domain_that_a_newer_version_names_is_not_guessed(node: Node) -> None:
    node.answers["-N"] = UP.replace("State: UP", "State: PARTITIONED")

    assert "domain_state_id" not in node.values()


class OneUnit(Systemctl):
    """Shows the IMEX daemon, enabled, in one state."""

    def __init__(self, active: str) -> None:
        super().__init__()
        self._active = active

    def show(self, units: object) -> str:
        return f"Id=nvidia-imex.service\nLoadState=loaded\nActiveState={self._active}\nSubState=x\nUnitFileState=enabled\nNRestarts=0\nResult=success\n"


@pytest.mark.parametrize(
    ("active", "nodes", "value"),
    [
        ("active", NODES, 1),
        ("failed", NODES, 0),
        ("inactive", NODES, None),  # stopped between two jobs
        ("inactive", "", None),
        ("failed", "", None),
    ],
)
def test_imex_daemon_counts_against_a_node_only_where_its_domain_is_configured(
    node: Node, active: str, nodes: str, value: int | None
) -> None:
    node.write("etc/nvidia-imex/nodes_config.cfg", nodes)
    collector = ServicesCollector(node.root / "sys", OneUnit(active), root=node.root)

    found = {
        metric.labels[0][1]: metric.value
        for metric in collector.collect()
        if metric.name.endswith("_active")
    }

    assert found == ({} if value is None else {"nvidia-imex.service": value})


def test_imex_daemon_that_the_configuration_requires_counts_in_any_case(node: Node) -> None:
    node.write("etc/nvidia-imex/nodes_config.cfg", "")
    collector = ServicesCollector(
        node.root / "sys", OneUnit("inactive"), ["nvidia-imex"], root=node.root
    )

    assert [metric.value for metric in collector.collect() if metric.name.endswith("_active")] == [
        0
    ]
