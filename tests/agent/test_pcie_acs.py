"""ACS of PCIe bridges above GPUs and network cards: from the register to the page and to the doctor."""

import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.families import FAMILIES
from agent.assembly.privileged import make_read_acs
from agent.collectors.versions import VersionsCollector
from agent.doctor.gpu import read_switch_ports
from agent.doctor.node_agent import AgentSetup, ask_agents_acs
from agent.doctor.places import Places
from agent.page.exposition import Exposition
from agent.root_helper.client import ask_acs
from agent.root_helper.program_list import Paths, programs_of
from agent.root_helper.program_runner import ProgramRunner
from agent.root_helper.questions import HelperAnswer, HelperQuery, ProgramOutcome, ProgramResult
from agent.sampling.collection import CollectorOutcome, CollectorView
from agent.sampling.runner import runner_metrics
from agent.sources.pcie_acs import BridgeAcs, decode_lines, list_bridges, read_acs
from detectors.doctor.check import HostOutcome, exit_code, judge
from detectors.doctor.gpu import GPU_CHECKS, GpuFacts, SwitchPort
from detectors.formats.pcie_acs import parse_acs, redirects_in_words
from rankmend.clock import SystemClock
from rankmend.errors import NoSourceError, RootOnlyError, SourceError
from tests.support.agent import PATIENT, answer_of, values_of
from tests.support.nics import make_node, write
from tests.support.pcie import ALL_REDIRECTS, bridge_config, set_config

pytestmark = pytest.mark.process

# Of `make_node`: a root port, a switch's upstream port and its downstream ports.
BRIDGES = {
    "0000:15:01.0": False,
    "0000:16:00.0": True,
    "0000:17:00.0": True,
    "0000:17:02.0": True,
    "0000:37:01.0": False,
    "0000:38:00.0": True,
    "0000:38:01.0": True,
    "0000:38:02.0": True,
    "0000:80:01.0": False,
    "0000:80:02.0": False,
    "0000:80:03.0": False,
}


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """A node whose ports below 17 redirect, and whose upstream ports have no ACS."""
    made = make_node(tmp_path)
    for bridge in BRIDGES:
        control = ALL_REDIRECTS if bridge.startswith("0000:17") else 0x0001
        is_upstream = bridge in ("0000:16:00.0", "0000:38:00.0")
        set_config(made, bridge, bridge_config(None if is_upstream else control))
    return made


@pytest.mark.parametrize(
    ("control", "words"),
    [
        (None, "off"),
        (0x0000, "off"),
        (0x0001, "off"),  # source validation keeps nobody from anybody
        (0x0063, "off"),
        (0x0004, "ReqRedir"),
        (ALL_REDIRECTS, "ReqRedir CmpltRedir UpstreamFwd"),
    ],
)
def test_only_redirects_count(control: int | None, words: str) -> None:
    read = parse_acs(bridge_config(control))

    assert read == control
    assert redirects_in_words(read) == words


def test_bridge_without_an_extended_space_has_no_acs() -> None:
    assert parse_acs(bridge_config(ALL_REDIRECTS, size=256)) is None


def test_what_others_than_root_get_tells_nothing() -> None:
    with pytest.raises(RootOnlyError, match="64 bytes of configuration space: only root"):
        parse_acs(bridge_config(ALL_REDIRECTS, size=64))
    with pytest.raises(SourceError, match="ends after 3 bytes") as raised:
        parse_acs(b"abc")
    assert not isinstance(raised.value, RootOnlyError)


def test_bridge_that_is_off_the_bus_tells_nothing() -> None:
    with pytest.raises(SourceError, match="does not answer"):
        parse_acs(b"\xff" * 4096)


def test_capabilities_that_go_round_end() -> None:
    space = bytearray(bridge_config(None))
    space[0x160:0x164] = (0x0019 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")

    with pytest.raises(SourceError, match="go round at 0x100"):
        parse_acs(bytes(space))


@PATIENT
@given(st.binary(min_size=0, max_size=512).map(lambda data: b"\0" * 256 + data))
def test_any_bytes_give_a_register_or_say_what_is_wrong(space: bytes) -> None:
    try:
        control = parse_acs(space)
    except SourceError:
        return
    assert control is None or 0 <= control <= 0xFFFF


def test_bridges_above_gpus_and_cards_are_found(sys: Path) -> None:
    assert list_bridges(sys) == BRIDGES
    assert "0000:38:02.0" not in list_bridges(sys, ["mlx5_1"])


def test_bridge_that_cant_be_read_harms_no_other(sys: Path) -> None:
    (sys / "bus/pci/devices/0000:17:02.0/config").write_bytes(bridge_config(4, size=64))
    (sys / "bus/pci/devices/0000:38:01.0/config").unlink()

    found = {one.bridge: one for one in read_acs(sys, BRIDGES)}

    assert found["0000:17:00.0"] == BridgeAcs("0000:17:00.0", ALL_REDIRECTS)
    assert found["0000:16:00.0"] == BridgeAcs("0000:16:00.0", None)
    assert "only root" in found["0000:17:02.0"].error
    assert "No such file" in found["0000:38:01.0"].error


def test_helpers_program_tells_the_agent_what_it_reads(sys: Path) -> None:
    clock = SystemClock()
    (program,) = programs_of(HelperQuery.PCIE_ACS, replace(Paths(), sysfs=sys), ("mlx5_1",))
    result = ProgramRunner(clock).run(program, clock.now_s() + 60)

    found = ask_acs(lambda query: HelperAnswer(query, 0.0, (result,)))

    assert (result.outcome, result.error) == (ProgramOutcome.ANSWERED, "")
    assert found == list(read_acs(sys, list_bridges(sys, ["mlx5_1"])))


def test_bridges_read_before_one_hung_are_not_lost() -> None:
    def answer(output: str) -> HelperAnswer:
        result = ProgramResult("all", ProgramOutcome.FAILED, None, output, "it took too long")
        return HelperAnswer(HelperQuery.PCIE_ACS, 0.0, (result,))

    cut = '{"bridge": "0000:17:00.0", "control": 4, "error": ""}\n{"bri'
    assert ask_acs(lambda _query: answer(cut)) == [BridgeAcs("0000:17:00.0", 4)]
    with pytest.raises(SourceError, match="it took too long"):
        ask_acs(lambda _query: answer(""))


@PATIENT
@given(
    st.text()
    | st.builds(
        json.dumps,
        st.dictionaries(
            st.sampled_from(["bridge", "control", "error"]),
            st.text() | st.integers() | st.none() | st.booleans(),
        ),
    )
)
def test_any_line_of_the_helper_is_taken_or_left(line: str) -> None:
    for one in decode_lines(line):
        assert one.control is None or 0 <= one.control <= 0xFFFF


def test_page_names_iommu_and_redirects(sys: Path, tmp_path: Path) -> None:
    acs = list(read_acs(sys, BRIDGES))
    for address in ("0000:18:00.0", "0000:39:00.0"):
        write(sys / "bus/pci/devices" / address / "iommu_group/type", "DMA-FQ")

    collector = VersionsCollector(
        tmp_path / "proc", sys, {"pcie_acs": ("off",)}, read_acs=lambda: acs
    )
    values = values_of(list(collector.collect()))

    assert values["version_info{iommu,,DMA-FQ}"] == 1
    assert values["version_info{pcie_acs,0000:17:02.0,ReqRedir CmpltRedir UpstreamFwd}"] == 1
    assert values["version_info{pcie_acs,0000:16:00.0,off}"] == 1
    assert values["version_matches_baseline{pcie_acs,0000:17:02.0}"] == 0
    assert values["version_matches_baseline{pcie_acs,0000:38:02.0}"] == 1


def test_node_without_an_iommu_is_told_from_one_that_hides_it(sys: Path, tmp_path: Path) -> None:
    def iommus() -> set[str]:
        values = values_of(list(VersionsCollector(tmp_path / "proc", sys).collect()))
        return {name for name in values if "iommu" in name}

    assert iommus() == {"version_info{iommu,,off}"}
    (sys / "class/iommu/dmar0").mkdir(parents=True)  # in use, and older than the file `type`
    assert iommus() == set()


@pytest.mark.parametrize("error", [NoSourceError("no root helper"), SourceError("it hangs")])
def test_bridges_that_nobody_can_read_cost_no_other_version(
    error: Exception, sys: Path, tmp_path: Path
) -> None:
    def fail() -> list[BridgeAcs]:
        raise error

    values = values_of(list(VersionsCollector(tmp_path / "proc", sys, read_acs=fail).collect()))

    assert "version_info{driver:mlx5_core,,24.10-1.1.4}" in values
    assert not any("pcie_acs" in name for name in values)


def test_unreadable_bridge_has_no_version_rather_than_off(sys: Path, tmp_path: Path) -> None:
    acs = [BridgeAcs("0000:17:00.0", error="it does not answer")]

    values = values_of(
        list(VersionsCollector(tmp_path / "proc", sys, read_acs=lambda: acs).collect())
    )

    assert not any("pcie_acs" in name for name in values)


def test_agent_asks_the_helper_only_where_there_are_bridges(sys: Path, tmp_path: Path) -> None:
    helper_socket = tmp_path / "helper.sock"
    helper_socket.touch()  # so that root, too, asks it
    asked = []

    def ask(query: HelperQuery) -> HelperAnswer:
        asked.append(query)
        return HelperAnswer(query, 0.0, ())

    make_read_acs(ask, str(helper_socket), tmp_path / "none", ())()
    assert asked == []
    make_read_acs(ask, str(helper_socket), sys, ())()
    assert asked == [HelperQuery.PCIE_ACS]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads it without the helper")
def test_root_without_a_helper_reads_it_itself(sys: Path, tmp_path: Path) -> None:
    def ask(query: HelperQuery) -> HelperAnswer:
        raise NoSourceError(query.value)

    found = make_read_acs(ask, str(tmp_path / "none.sock"), sys, ())()

    assert {one.bridge for one in found if one.control == ALL_REDIRECTS} == {
        "0000:17:00.0",
        "0000:17:02.0",
    }


# --- doctor


def judge_acs(*ports: SwitchPort, cards: int = 2) -> tuple[HostOutcome, str, str]:
    facts = GpuFacts(cards=cards, switches=0, switch_ports=ports)
    (result,) = [one for one in judge(GPU_CHECKS, facts) if one.check == "gpu_acs"]
    return result.outcome, result.found, result.mend


def test_doctor_judges_ports_of_switches_and_no_root_ports(sys: Path, tmp_path: Path) -> None:
    set_config(sys, "0000:15:01.0", bridge_config(ALL_REDIRECTS))  # as firmware for ARM sets it

    ports, _is_by_agent = read_switch_ports(Places(tmp_path / "proc", sys, tmp_path))

    assert {port.bus_id: port.has_redirect for port in ports} == {
        bridge: bridge.startswith("0000:17")
        for bridge, is_of_switch in BRIDGES.items()
        if is_of_switch
    }


def test_doctor_names_the_ports_and_the_line_that_mends_them() -> None:
    outcome, found, mend = judge_acs(
        SwitchPort("0000:17:00.0", True),
        SwitchPort("0000:17:02.0", None),
        SwitchPort("0000:38:01.0", False),
    )

    assert outcome is HostOutcome.LACKING
    assert found == "ACS redirects traffic at 1 of 3 ports of PCIe switches"
    assert mend.startswith(
        "for port in 0000:17:00.0; do setpci -s $port ECAP_ACS+0x6.w=0000; done  #"
    )


def test_doctor_calls_nothing_good_that_it_could_not_read() -> None:
    hidden = SwitchPort("0000:17:00.0", None)
    assert judge_acs(hidden)[0] is HostOutcome.UNKNOWN
    assert judge_acs(SwitchPort("0000:17:00.0", False))[0] is HostOutcome.OK
    assert judge_acs()[0] is HostOutcome.NOT_APPLICABLE
    assert judge_acs(hidden, cards=0)[0] is HostOutcome.NOT_APPLICABLE


def test_config_that_is_no_file_holds_nobody_up(sys: Path) -> None:
    config = sys / "bus/pci/devices/0000:17:00.0/config"
    config.unlink()
    os.mkfifo(config)

    (found,) = read_acs(sys, ["0000:17:00.0"])

    assert stat.S_ISFIFO(config.stat().st_mode)
    assert found.error


@contextmanager
def serving(page: bytes) -> Iterator[str]:
    """Serve a page as the agent does; yield the address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def close_to_others(sys: Path) -> None:
    """Leave of each configuration space what the kernel gives to anybody."""
    for bridge in BRIDGES:
        config = sys / "bus/pci/devices" / bridge / "config"
        config.write_bytes(config.read_bytes()[:64])


def test_user_without_rights_is_told_so_and_no_gate_fails_by_it(sys: Path, tmp_path: Path) -> None:
    close_to_others(sys)

    ports, is_by_agent = read_switch_ports(Places(tmp_path / "proc", sys, tmp_path), dict)

    facts = GpuFacts(cards=2, switches=0, switch_ports=ports, is_acs_by_agent=is_by_agent)
    (result,) = [one for one in judge(GPU_CHECKS, facts) if one.check == "gpu_acs"]
    assert result.outcome is HostOutcome.HIDDEN
    assert result.as_root.startswith("sudo rankmend doctor gpu")
    assert exit_code([result]) == 0


def test_port_that_fails_for_root_too_is_unknown_among_hidden_ones() -> None:
    hidden = SwitchPort("0000:17:00.0", None, is_root_only=True)

    assert judge_acs(hidden, SwitchPort("0000:38:01.0", None))[0] is HostOutcome.UNKNOWN
    assert judge_acs(hidden, SwitchPort("0000:38:01.0", True))[0] is HostOutcome.LACKING


@pytest.mark.parametrize("is_mended", [False, True])
def test_user_without_rights_gets_the_agents_reading(
    sys: Path, tmp_path: Path, *, is_mended: bool
) -> None:
    """The agent's page, with what root's helper has read, through a socket."""
    if is_mended:
        for bridge in ("0000:17:00.0", "0000:17:02.0"):
            set_config(sys, bridge, bridge_config(0))
    by_root = list(read_acs(sys, BRIDGES))
    close_to_others(sys)
    collector = VersionsCollector(tmp_path / "proc", sys, read_acs=lambda: by_root)
    view = CollectorView(
        *("versions", 60.0, CollectorOutcome.MEASURED, "", 0.5, 0.1, None, 0.5, 0, False),
        answer_of(collector.collect()),
    )
    exposition = Exposition(lambda: [view], runner_metrics, lambda: 100.0, FAMILIES)

    with serving(exposition.page(openmetrics=False, compressed=False)) as address:
        ask = partial(ask_agents_acs, AgentSetup(listen=address))
        ports, is_by_agent = read_switch_ports(Places(tmp_path / "proc", sys, tmp_path), ask)

    facts = GpuFacts(cards=2, switches=0, switch_ports=ports, is_acs_by_agent=is_by_agent)
    (result,) = [one for one in judge(GPU_CHECKS, facts) if one.check == "gpu_acs"]
    assert is_by_agent
    assert result.found == (
        "ACS redirects nothing at 6 ports of PCIe switches (the agent's reading)"
        if is_mended
        else "ACS redirects traffic at 2 of 6 ports of PCIe switches"
    )
    assert result.outcome is (HostOutcome.OK if is_mended else HostOutcome.LACKING)


def test_agent_that_is_not_there_tells_nothing() -> None:
    assert ask_agents_acs(AgentSetup(listen="127.0.0.1:1")) == {}
