"""Network cards as the kernel sees them, and what their drivers count."""

import json
import os
import shutil
import subprocess
import sys as system
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.families import FAMILIES
from agent.collectors.ethernet import EthernetCollector, parse_flags, parse_number
from agent.collectors.ethtool import EthtoolCollector, map_counter
from agent.sampling.collection import Collector
from agent.sources.network_driver import DriverInfo, FecBlocks, PauseFrames
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import PATIENT, ROOT, checked, values_of
from tests.support.collectors import unpack_ttar
from tests.support.nics import add_net, make_node, write

pytestmark = pytest.mark.process

IP = shutil.which("ip")


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    return make_node(tmp_path)


def collect(collector: Collector) -> dict[str, float]:
    return values_of(checked(collector.collect()))


def test_card_is_shown_in_base_units(sys: Path) -> None:
    values = collect(EthernetCollector(sys))

    assert values["ethernet_info{ens2np0,0000:81:00.0,mlx5_core}"] == 1
    assert values["ethernet_carrier{ens2np0}"] == 1
    assert values["ethernet_carrier_changes_total{ens2np0}"] == 4
    assert values["ethernet_carrier_downs_total{ens2np0}"] == 2
    assert values["ethernet_speed_bytes_per_second{ens2np0}"] == 25e9  # 200000 Mbit/s
    assert values["ethernet_mtu_bytes{ens2np0}"] == 9000
    assert values["ethernet_errors_total{ens2np0,rx_crc_errors}"] == 6
    assert values["ethernet_unreadable_files{ens2np0}"] == 0
    assert not [name for name in values if "{lo" in name]  # no hardware


def test_unknown_speed_is_absent_and_no_failure(sys: Path) -> None:
    values = collect(EthernetCollector(sys))

    assert "ethernet_speed_bytes_per_second{usb0}" not in values  # the file says -1
    assert values["ethernet_unreadable_files{usb0}"] == 0


def test_card_that_is_switched_off_has_no_carrier_rather_than_a_lost_one(sys: Path) -> None:
    card = sys / "class" / "net" / "eth0"
    (card / "flags").write_text("0x1002\n")
    (card / "carrier").unlink()
    (card / "carrier").mkdir()  # a read fails, as it does on a card that is off

    values = collect(EthernetCollector(sys))

    assert values["ethernet_enabled{eth0}"] == 0
    assert "ethernet_carrier{eth0}" not in values
    assert "ethernet_speed_bytes_per_second{eth0}" not in values
    assert values["ethernet_unreadable_files{eth0}"] == 0


def test_card_of_a_tree_that_was_copied_without_links_is_shown_and_software_is_not(
    tmp_path: Path,
) -> None:
    net = tmp_path / "sys" / "class" / "net"
    for name, iflink, more in (
        ("eth5", "5", "mtu"),
        ("veth5", "9", "mtu"),
        ("br5", "5", "bridge/bridge_id"),
        ("tun5", "5", "tun_flags"),
    ):
        for file, text in (("type", "1"), ("ifindex", "5"), ("iflink", iflink), (more, "1500")):
            write(net / name / file, text)
    write(net / "lo" / "type", "772")

    values = collect(EthernetCollector(tmp_path / "sys"))

    assert [name for name in values if name.startswith("ethernet_info")] == [
        "ethernet_info{eth5,,}"
    ]


def test_unknown_speed_of_an_old_kernel_is_absent_too(sys: Path) -> None:
    write(sys / "class" / "net" / "eth0" / "speed", "4294967295")  # -1 of 32 bits, unsigned

    values = collect(EthernetCollector(sys))

    assert "ethernet_speed_bytes_per_second{eth0}" not in values
    assert values["ethernet_unreadable_files{eth0}"] == 0


def test_carrier_and_speed_of_a_tree_without_flags_are_read(sys: Path) -> None:
    (sys / "class" / "net" / "eth0" / "flags").unlink()

    values = collect(EthernetCollector(sys))

    assert values["ethernet_carrier{eth0}"] == 1
    assert values["ethernet_speed_bytes_per_second{eth0}"] == 25e9 / 8
    assert "ethernet_enabled{eth0}" not in values


def test_lost_carrier_is_shown_without_a_speed(sys: Path) -> None:
    (sys / "class" / "net" / "eth0" / "carrier").write_text("0\n")

    values = collect(EthernetCollector(sys))

    assert values["ethernet_carrier{eth0}"] == 0
    assert "ethernet_speed_bytes_per_second{eth0}" not in values


def test_one_bad_file_costs_one_value(sys: Path) -> None:
    before = collect(EthernetCollector(sys))
    (sys / "class" / "net" / "eth0" / "mtu").write_text("many\n")

    after = collect(EthernetCollector(sys))

    assert set(before) - set(after) == {"ethernet_mtu_bytes{eth0}"}
    assert after["ethernet_unreadable_files{eth0}"] == 1


def test_device_without_hardware_is_shown_where_it_is_asked_for(sys: Path) -> None:
    add_net(sys, "vx0", sys / "devices" / "virtual")
    shutil.rmtree(sys / "devices" / "virtual" / "net" / "vx0" / "device", ignore_errors=True)
    (sys / "devices" / "virtual" / "net" / "vx0" / "device").unlink(missing_ok=True)

    assert "ethernet_carrier{vx0}" not in collect(EthernetCollector(sys))
    assert "ethernet_carrier{vx0}" in collect(EthernetCollector(sys, wanted=("vx*",)))


def test_excluded_card_is_left_out(sys: Path) -> None:
    values = collect(EthernetCollector(sys, excluded=("ens*", "usb0")))

    assert {name for name in values if "carrier{" in name} == {"ethernet_carrier{eth0}"}


def test_node_without_cards_is_absent(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError):
        collect(EthernetCollector(tmp_path))


def test_card_that_goes_is_forgotten(sys: Path) -> None:
    collector = EthernetCollector(sys)
    collect(collector)
    (sys / "class" / "net" / "usb0").unlink()

    assert "ethernet_carrier{usb0}" not in collect(collector)


@PATIENT
@given(st.text() | st.from_regex(r"-?[0-9]+", fullmatch=True))
def test_number_is_understood_or_refused(text: str) -> None:
    with suppress(SourceError):
        assert abs(parse_number(text)) < 10**20


@PATIENT
@given(st.text() | st.from_regex(r"0x[0-9a-f]+", fullmatch=True))
def test_flags_are_understood_or_refused(text: str) -> None:
    with suppress(SourceError):
        assert 0 <= parse_flags(text) < 2**32


class FakeDriver:
    """An mlx5, and a card whose driver knows nothing."""

    def __init__(self) -> None:
        self.counters = {
            "rx_prio3_pause": 11,
            "tx_prio3_pause": 12,
            "rx_prio3_pause_duration": 2_500_000,
            "rx_prio3_discards": 4,
            "rx_pause_ctrl_phy": 99,
            "tx_pause_storm_error_events": 1,
            "link_down_events_phy": 3,
            "rx_discards_phy": 17,
            "rx_ecn_mark": 8,
            "rx123_packets": 1,
        }
        self.broken: SourceError | None = None
        self.forgotten: list[str] = []

    def driver_info(self, device: str) -> DriverInfo:
        if device != "ens2np0":
            raise NoSourceError("not supported")
        return DriverInfo("mlx5_core", "24.10", "28.41.1000 (MT_0000000884)", "0000:81:00.0")

    def statistics(self, device: str) -> dict[str, int]:
        self.driver_info(device)
        if self.broken:
            raise self.broken
        return self.counters

    def pause_frames(self, device: str) -> PauseFrames:
        self.driver_info(device)
        return PauseFrames(received=21, sent=None)

    def fec_blocks(self, device: str) -> FecBlocks:
        self.driver_info(device)
        return FecBlocks(corrected=1000, uncorrectable=2)

    def forget(self, device: str) -> None:
        self.forgotten.append(device)


def test_drivers_counters_are_shown_under_common_names(sys: Path) -> None:
    values = collect(EthtoolCollector(sys, FakeDriver()))

    described = "ens2np0,mlx5_core,24.10,28.41.1000 (MT_0000000884)"
    assert values[f"ethernet_driver_info{{{described}}}"] == 1
    assert values["ethernet_priority_pause_frames_total{ens2np0,3,receive}"] == 11
    assert values["ethernet_priority_pause_frames_total{ens2np0,3,transmit}"] == 12
    assert values["ethernet_priority_pause_seconds_total{ens2np0,3,receive}"] == 2.5
    assert values["ethernet_priority_discards_total{ens2np0,3,receive}"] == 4
    assert values["ethernet_pause_storms_total{ens2np0,error}"] == 1
    assert values["ethernet_link_errors_total{ens2np0,link_down}"] == 3
    assert values["ethernet_link_errors_total{ens2np0,receive_discard}"] == 17
    assert values["ethernet_ecn_marked_packets_total{ens2np0}"] == 8
    assert values["ethernet_fec_blocks_total{ens2np0,uncorrectable}"] == 2
    assert values["ethernet_driver_success{ens2np0}"] == 1
    assert values["ethernet_driver_success{eth0}"] == 1  # it has nothing to say: no failure


def test_kernels_own_count_of_pauses_wins_over_the_drivers(sys: Path) -> None:
    values = collect(EthtoolCollector(sys, FakeDriver()))

    assert values["ethernet_pause_frames_total{ens2np0,receive}"] == 21
    assert "ethernet_pause_frames_total{ens2np0,transmit}" not in values


def test_question_that_fails_is_reported_and_takes_no_other_with_it(sys: Path) -> None:
    driver = FakeDriver()
    driver.broken = SourceError("Input/output error")

    values = collect(EthtoolCollector(sys, driver))

    assert values["ethernet_driver_success{ens2np0}"] == 0
    assert values["ethernet_pause_frames_total{ens2np0,receive}"] == 21


def test_names_of_a_card_that_went_are_forgotten(sys: Path) -> None:
    driver = FakeDriver()
    collector = EthtoolCollector(sys, driver)
    collect(collector)
    (sys / "class" / "net" / "eth0").unlink()
    collect(collector)

    assert driver.forgotten == ["eth0"]


@pytest.mark.parametrize(
    ("name", "metric", "labels"),
    [
        ("rx_prio0_pause", "priority_pause_frames", ("0", "receive")),  # mlx5
        ("tx_pause_prio_7", "priority_pause_frames", ("7", "transmit")),  # mlx4
        ("rx_pfc_ena_frames_pri4", "priority_pause_frames", ("4", "receive")),  # bnxt_en
        ("port.tx_priority_2_xoff", "priority_pause_frames", ("2", "transmit")),  # i40e
        ("rx_priority_2_xoff.nic", "priority_pause_frames", ("2", "receive")),  # ice
        ("tx_pb_1_pxoff", "priority_pause_frames", ("1", "transmit")),  # ixgbe
        ("mac_rx_pfc_pri3_pkt_num", "priority_pause_frames", ("3", "receive")),  # hns3
        ("pfc_pri3_tx_duration_us", "priority_pause_seconds", ("3", "transmit")),  # bnxt_en
        ("tx_pause_frames", "pause_frames", ("transmit",)),  # bnxt_en
        ("link_xoff_rx.nic", "pause_frames", ("receive",)),  # ice
        ("port.link_xoff_tx", "pause_frames", ("transmit",)),  # i40e
        ("rx_global_pause_duration", "pause_seconds", ("receive",)),  # mlx5
        ("rx_fcs_err_frames", "link_errors", ("crc",)),  # bnxt_en
        ("tx_pause_storm_warning_events", "pause_storms", ("warning",)),  # mlx5
    ],
)
def test_names_of_every_driver_meet_in_one_metric(
    name: str, metric: str, labels: tuple[str, ...]
) -> None:
    mapped = map_counter(name)

    assert mapped is not None
    assert mapped[0] == f"rankmend_ethernet_{metric}_total"
    assert tuple(value for _label, value in mapped[1]) == labels


@pytest.mark.parametrize(
    "name",
    ["rx_prio8_pause", "rx_priority_2_xon.nic", "rx_prio3_pause_transition", "ch3_poll", ""],
)
def test_other_counters_are_not_shown(name: str) -> None:
    assert map_counter(name) is None


@PATIENT
@given(st.text() | st.from_regex(r"[rt]x_prio[0-9]_(pause|discards)[a-z_]*", fullmatch=True))
def test_every_mapped_counter_fits_its_family(name: str) -> None:
    mapped = map_counter(name)

    if mapped is not None:
        metric, labels, _factor = mapped
        assert FAMILIES[metric].labels == ("device", *(label for label, _value in labels))


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace with a pair of devices, va (up, with carrier) and vb."""
    if IP is None or os.geteuid() != 0:
        pytest.skip("needs root and ip(8)")
    name = f"rankmend-{uuid.uuid4().hex[:8]}"
    if subprocess.run([IP, "netns", "add", name], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are not allowed here")
    try:
        ip(name, "link", "add", "va", "type", "veth", "peer", "name", "vb")
        ip(name, "link", "set", "va", "up")
        ip(name, "link", "set", "vb", "up")
        yield name
    finally:
        subprocess.run([IP, "netns", "del", name], check=False)


def ip(namespace: str, *arguments: str) -> None:
    assert IP is not None
    subprocess.run([IP, "-n", namespace, *arguments], check=True)


class Inside:
    """A process in a network namespace that evaluates expressions."""

    PROGRAM = """
import json, sys
from pathlib import Path
from agent.collectors.ethernet import EthernetCollector
from agent.collectors.ethtool import EthtoolCollector
from agent.sources.network_driver import Ethtool
from tests.support.agent import values_of
ethtool = Ethtool()
ethernet = EthernetCollector(Path("/sys"), wanted=("v?",))
drivers = EthtoolCollector(Path("/sys"), ethtool, wanted=("v?",))
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""

    def __init__(self, namespace: str) -> None:
        assert IP is not None
        self.process = subprocess.Popen(
            [IP, "netns", "exec", namespace, system.executable, "-c", self.PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def ask(self, expression: str) -> object:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(expression, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def values(self, collector: str) -> dict[str, float]:
        values = self.ask(f"values_of(list({collector}.collect()))")
        assert isinstance(values, dict)
        return values


@pytest.fixture
def inside(namespace: str) -> Iterator[Inside]:
    inside = Inside(namespace)
    try:
        yield inside
    finally:
        inside.process.kill()
        inside.process.communicate()


def test_link_that_goes_down_is_seen_at_once(namespace: str, inside: Inside) -> None:
    before = inside.values("ethernet")
    ip(namespace, "link", "set", "vb", "down")
    after = inside.values("ethernet")

    assert before["ethernet_carrier{va}"] == 1
    assert before["ethernet_speed_bytes_per_second{va}"] == 1.25e9  # veth says 10000 Mbit/s
    assert after["ethernet_carrier{va}"] == 0
    assert after["ethernet_carrier_downs_total{va}"] == (
        before["ethernet_carrier_downs_total{va}"] + 1
    )
    assert after["ethernet_enabled{vb}"] == 0
    assert "ethernet_carrier{vb}" not in after
    assert after["ethernet_unreadable_files{vb}"] == 0


def test_device_that_is_made_anew_is_read_through_a_new_descriptor(
    namespace: str, inside: Inside
) -> None:
    ip(namespace, "link", "set", "vb", "down")
    ip(namespace, "link", "set", "vb", "up")
    before = inside.values("ethernet")
    ip(namespace, "link", "del", "va")
    ip(namespace, "link", "add", "va", "type", "veth", "peer", "name", "vb")
    ip(namespace, "link", "set", "va", "mtu", "1300")

    after = inside.values("ethernet")  # the kept descriptors answer ENODEV

    assert before["ethernet_carrier_downs_total{va}"] >= 1
    assert after["ethernet_carrier_downs_total{va}"] < before["ethernet_carrier_downs_total{va}"]
    assert after["ethernet_mtu_bytes{va}"] == 1300
    assert after["ethernet_unreadable_files{va}"] == 0


def test_real_driver_answers_by_ioctl_and_netlink(inside: Inside) -> None:
    statistics = inside.ask("ethtool.statistics('va')")
    values = inside.values("drivers")

    assert isinstance(statistics, dict)
    assert "peer_ifindex" in statistics
    assert inside.ask("ethtool.driver_info('va').driver") == "veth"
    assert inside.ask("ethtool.is_link_up('va')") is True
    assert values["ethernet_driver_info{va,veth,1.0,}"] == 1
    assert values["ethernet_driver_success{va}"] == 1


def test_recorded_tree_is_read(tmp_path: Path) -> None:
    datasets = os.environ.get("RANKMEND_DATASETS")
    if not datasets:
        pytest.skip("RANKMEND_DATASETS is not set")
    unpack_ttar(Path(datasets) / "sysfs" / "node-exporter" / "sys.ttar", tmp_path)
    root = tmp_path / "sys"

    values = collect(EthernetCollector(root))  # its eth0 has neither flags nor a link to its card

    assert values["ethernet_carrier{eth0}"] == 1
    assert values["ethernet_speed_bytes_per_second{eth0}"] == 1000e6 / 8
    assert values["ethernet_unreadable_files{bond0}"] == 0
