"""RDMA ports: what each file says, and what one bad file costs."""

import os
import re
import shutil
import sys as system
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.nic import RESCAN_RUNS, NicCollector
from agent.collectors.nic_files import COUNTERS, parse_counter, parse_rate, parse_state
from agent.sampling.demand import Demand
from agent.sources.kept_files import HOLD_RUNS_MAX, KeptFiles
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import PATIENT, FakeClock, checked, values_of
from tests.support.collectors import unpack_ttar
from tests.support.nics import add_pci, add_rdma, make_node, write

_watchers: list[list[str]] = []


def _note_open(event: str, arguments: tuple[object, ...]) -> None:
    if _watchers and event in ("open", "os.listdir", "os.scandir"):
        _watchers[-1].append(str(arguments[0]))


system.addaudithook(_note_open)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """The files and folders that are opened from here on."""
    _watchers.append([])
    yield _watchers[-1]
    _watchers.pop()


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    return make_node(tmp_path)


def collect(collector: NicCollector) -> dict[str, float]:
    return values_of(checked(collector.collect()))


def port_of(sys: Path, device: str) -> Path:
    return sys / "class" / "infiniband" / device / "ports" / "1"


def test_port_is_shown_in_base_units(sys: Path) -> None:
    values = collect(NicCollector(sys))

    assert values["nic_port_state_id{mlx5_0,1}"] == 4
    assert values["nic_port_physical_state_id{mlx5_0,1}"] == 5
    assert values["nic_rate_bytes_per_second{mlx5_0,1}"] == 50e9  # 400 Gbit/s
    assert values["nic_transmit_bytes_total{mlx5_0,1}"] == 4000  # the file counts words of 4
    assert values["nic_receive_packets_total{mlx5_0,1}"] == 8
    assert values["nic_receive_errors_total{mlx5_0,1}"] == 3
    assert values["nic_hardware_total{mlx5_0,1,np_cnp_sent}"] == 41
    assert values["nic_resources{mlx5_0,1,active_qps}"] == 9
    assert values["nic_unreadable_files{mlx5_0,1}"] == 0
    assert not [name for name in values if "lifespan" in name]  # a setting and no counter


def test_device_and_port_are_described(sys: Path) -> None:
    values = collect(NicCollector(sys))

    described = "mlx5_0,0000:1a:00.0,mlx5_core,24.10-1.1.4,28.41.1000,MT4129,MT_0000000838"
    assert values[f"nic_device_info{{{described}}}"] == 1
    assert values["nic_port_info{mlx5_0,1,InfiniBand,}"] == 1
    assert values["nic_port_info{mlx5_2,1,Ethernet,ens2np0}"] == 1


def test_counter_at_its_end_is_marked_and_one_below_it_is_not(sys: Path) -> None:
    values = collect(NicCollector(sys))

    assert values["nic_link_downed_total{mlx5_0,1}"] == 255
    assert values["nic_saturated{mlx5_0,1,link_downed}"] == 1  # 8 bits
    assert values["nic_saturated{mlx5_0,1,excessive_buffer_overrun_errors}"] == 1  # 4 bits
    assert values["nic_symbol_errors_total{mlx5_0,1}"] == 65534
    assert "nic_saturated{mlx5_0,1,symbol_error}" not in values  # 16 bits end at 65535
    assert "nic_saturated{mlx5_0,1,port_rcv_data}" not in values  # 64 bits, not 32


@pytest.mark.parametrize(
    ("counter", "last"),
    [
        ("symbol_error", 65_535),
        ("link_downed", 255),
        ("local_link_integrity_errors", 15),
        ("port_xmit_wait", 4_294_967_295),
        ("port_rcv_data", 4_294_967_295),
    ],
)
def test_counters_saturate_where_the_specification_ends_them(counter: str, last: int) -> None:
    assert COUNTERS[counter].saturates_at == last


def test_counter_that_the_card_does_not_have_is_absent_and_no_failure(sys: Path) -> None:
    values = collect(NicCollector(sys))

    assert "nic_transmit_wait_ticks_total{mlx5_0,1}" not in values
    assert values["nic_unreadable_files{mlx5_0,1}"] == 0


def test_one_bad_file_costs_one_value(sys: Path) -> None:
    before = collect(NicCollector(sys))
    (port_of(sys, "mlx5_0") / "counters" / "symbol_error").write_bytes(b"\xff\xfe")

    after = collect(NicCollector(sys))

    assert set(before) - set(after) == {"nic_symbol_errors_total{mlx5_0,1}"}
    assert after["nic_unreadable_files{mlx5_0,1}"] == 1
    assert after["nic_unreadable_files{mlx5_1,1}"] == 0


def test_file_that_the_kernel_refuses_is_left_alone_for_a_while(
    sys: Path, opened: list[str]
) -> None:
    refused = port_of(sys, "mlx5_0") / "counters" / "symbol_error"
    refused.unlink()
    refused.mkdir()  # reading a folder fails with EISDIR
    collector = NicCollector(sys)

    for _run in range(40):
        values = collect(collector)
        assert values["nic_unreadable_files{mlx5_0,1}"] == 1

    tries = [path for path in opened if path == str(refused)]
    assert len(tries) == 6  # runs 1, 2, 4, 8, 16 and 32


def test_state_is_asked_each_time_even_after_it_failed(sys: Path) -> None:
    state = port_of(sys, "mlx5_0") / "state"
    collector = NicCollector(sys)
    state.write_text("garbage\n")
    for _run in range(3):
        collect(collector)
    state.write_text("1: DOWN\n")

    assert collect(collector)["nic_port_state_id{mlx5_0,1}"] == 1


def test_excluded_device_is_never_opened(sys: Path, opened: list[str]) -> None:
    collector = NicCollector(sys, excluded=("mlx5_[23]",))

    values = collect(collector)

    assert "nic_port_state_id{mlx5_0,1}" in values
    assert not [name for name in values if "mlx5_2" in name or "mlx5_3" in name]
    assert [path for path in opened if "/mlx5_0/" in path]
    assert not [path for path in opened if re.search(r"mlx5_[23]|0000:8[12]", path)]


def test_node_where_all_devices_are_excluded_is_absent(sys: Path) -> None:
    with pytest.raises(NoSourceError, match="not excluded"):
        collect(NicCollector(sys, excluded=("*",)))


def test_node_without_rdma_is_absent(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError, match="infiniband"):
        collect(NicCollector(tmp_path))


def test_rate_is_held_against_the_fastest_port_of_the_same_board(sys: Path) -> None:
    values = collect(NicCollector(sys))

    assert values["nic_rate_bytes_per_second{mlx5_1,1}"] == 25e9
    assert values["nic_rate_max_bytes_per_second{mlx5_1,1}"] == 50e9  # mlx5_0 does it
    assert values["nic_rate_max_bytes_per_second{mlx5_2,1}"] == 25e9  # another board


def test_rate_that_was_seen_once_stays_the_measure(sys: Path) -> None:
    collector = NicCollector(sys, excluded=("mlx5_[123]",))
    collect(collector)
    (port_of(sys, "mlx5_0") / "rate").write_text("100 Gb/sec (1X NDR)\n")

    values = collect(collector)

    assert values["nic_rate_bytes_per_second{mlx5_0,1}"] == 12.5e9
    assert values["nic_rate_max_bytes_per_second{mlx5_0,1}"] == 50e9


def test_configured_rate_wins(sys: Path) -> None:
    values = collect(NicCollector(sys, rates_gbit={"mlx5_2/1": 400, "mlx5_*": 800}))

    assert values["nic_rate_max_bytes_per_second{mlx5_2,1}"] == 50e9
    assert values["nic_rate_max_bytes_per_second{mlx5_0,1}"] == 100e9


def test_values_are_read_anew_through_kept_descriptors(sys: Path, opened: list[str]) -> None:
    collector = NicCollector(sys)
    collect(collector)
    opened.clear()
    (port_of(sys, "mlx5_0") / "counters" / "port_xmit_packets").write_text("19\n")
    opened.clear()

    values = collect(collector)

    assert values["nic_transmit_packets_total{mlx5_0,1}"] == 19
    assert [path for path in opened if "counters/" in path] == []


def test_device_that_comes_and_goes_is_followed(sys: Path) -> None:
    collector = NicCollector(sys)
    collect(collector)
    kept = collector._files.kept_count
    (sys / "class" / "infiniband" / "mlx5_1").unlink()
    without = collect(collector)
    kept_without = collector._files.kept_count
    pci = add_pci(sys, "80/80:06.0/86:00.0", "0x020000", "0x15b3", 1, "mlx5_core")
    add_rdma(sys, "mlx5_10", pci, "InfiniBand", "400 Gb/sec (4X NDR)")

    with_new = collect(collector)

    assert "nic_port_state_id{mlx5_1,1}" not in without
    assert kept_without < kept
    assert with_new["nic_port_state_id{mlx5_10,1}"] == 4


def test_counters_that_appear_later_are_found(sys: Path) -> None:
    collector = NicCollector(sys)
    collect(collector)
    write(port_of(sys, "mlx5_0") / "hw_counters" / "rx_dct_connect", "3")

    for _run in range(RESCAN_RUNS):
        values = collect(collector)

    assert values["nic_hardware_total{mlx5_0,1,rx_dct_connect}"] == 3


def test_counters_of_the_device_have_no_port(sys: Path) -> None:
    write(sys / "class" / "infiniband" / "mlx5_0" / "hw_counters" / "ip4InOctets", "77")

    values = collect(NicCollector(sys))

    assert values["nic_hardware_total{mlx5_0,,ip4InOctets}"] == 77
    assert values["nic_unreadable_files{mlx5_0,}"] == 0


@pytest.mark.parametrize(
    ("text", "gbit"),
    [
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("10 Gb/sec (4X)", 10),
        ("40 Gb/sec (4X QDR)", 40),
        ("56 Gb/sec (4X FDR)", 56),
        ("400 Gb/sec (4X NDR)", 400),
        ("1600 Gb/sec (8X XDR)", 1600),
    ],
)
def test_rate_is_read_in_every_form_of_the_kernel(text: str, gbit: float) -> None:
    assert parse_rate(text) == gbit * 1e9 / 8


@pytest.mark.parametrize("text", ["", "400", "400 Gb/sec (4X NDR) ", "-1 Gb/sec", "4e2 Gb/sec"])
def test_rate_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "state_id"), [("1: DOWN", 1), ("5: ACTIVE_DEFER", 5), ("8: <unknown>", 8)]
)
def test_state_is_its_number(text: str, state_id: int) -> None:
    assert parse_state(text) == state_id


@PATIENT
@given(st.text() | st.from_regex(r"\d+: ?[A-Z]+", fullmatch=True))
def test_state_text_is_understood_or_refused(text: str) -> None:
    with suppress(SourceError):
        assert 0 <= parse_state(text) <= 999


@PATIENT
@given(st.text() | st.from_regex(r"[0-9.]+ Gb/sec \([0-9]+X [A-Z]+\)", fullmatch=True))
def test_rate_text_is_understood_or_refused(text: str) -> None:
    with suppress(SourceError):
        assert 0 <= parse_rate(text) < 1e15


@PATIENT
@given(st.text() | st.from_regex(r"[0-9]+", fullmatch=True) | st.just("N/A (no PMA)"))
def test_counter_text_is_a_number_absent_or_refused(text: str) -> None:
    with suppress(SourceError, NoSourceError):
        assert 0 <= parse_counter(text) < 10**20


def test_kept_file_that_fails_waits_twice_as_long_each_time(tmp_path: Path) -> None:
    files = KeptFiles()
    tried = []
    for run in range(1, 300):
        files.begin_run()
        with pytest.raises(SourceError) as raised:
            files.read(str(tmp_path), holds_back=True)
        if "not read again" not in str(raised.value):
            tried.append(run)

    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps == [1, 2, 4, 8, 16, 32, HOLD_RUNS_MAX, HOLD_RUNS_MAX, HOLD_RUNS_MAX]


def test_file_that_holds_what_it_held_gives_the_same_text(tmp_path: Path) -> None:
    files = KeptFiles()
    write(tmp_path / "state", "4: ACTIVE")
    first = files.read(str(tmp_path / "state"))

    again = files.read(str(tmp_path / "state"))
    write(tmp_path / "state", "1: DOWN")
    changed = files.read(str(tmp_path / "state"))

    assert again is first
    assert changed == "1: DOWN"


def test_sample_of_a_counter_that_stands_is_made_once(sys: Path) -> None:
    collector = NicCollector(sys)
    first = {id(metric) for metric in collector.collect()}

    again = [m for m in collector.collect() if m.name == "rankmend_nic_symbol_errors_total"]

    assert again
    assert {id(metric) for metric in again} <= first


def test_files_are_unchanged_until_one_holds_another_text_or_is_gone(tmp_path: Path) -> None:
    files = KeptFiles()
    files._kept_max = 1  # the second is opened for each look
    paths = [str(tmp_path / name) for name in ("state", "rate")]
    for path in paths:
        write(Path(path), "4: ACTIVE")
    assert not files.are_unchanged(paths), "nobody has read them"
    for path in paths:
        files.read(path)

    assert files.are_unchanged(paths)
    write(tmp_path / "rate", "1: DOWN")
    assert not files.are_unchanged(paths)
    files.read(paths[1])
    assert files.are_unchanged(paths)
    (tmp_path / "rate").unlink()
    assert not files.are_unchanged(paths)


def test_ports_that_stand_give_the_same_answer_and_a_link_that_falls_is_in_the_next(
    sys: Path,
) -> None:
    clock = FakeClock()
    collector = NicCollector(sys, clock=clock, demand=Demand(clock.now_s))
    first = collector.collect()
    clock.time_s += 1.0

    assert collector.collect() is first
    write(port_of(sys, "mlx5_0") / "state", "1: DOWN")
    clock.time_s += 1.0
    fallen = collect(collector)
    write(port_of(sys, "mlx5_0") / "counters" / "link_downed", "7")
    clock.time_s += 1.0

    assert fallen["nic_port_state_id{mlx5_0,1}"] == 1
    assert collect(collector)["nic_link_downed_total{mlx5_0,1}"] == 7


def test_descriptors_beyond_the_bound_are_not_kept(tmp_path: Path) -> None:
    files = KeptFiles()
    files._kept_max = 3
    for number in range(5):
        write(tmp_path / str(number), str(number))

    texts = [files.read(str(tmp_path / str(number))) for number in range(5)]

    assert texts == ["0", "1", "2", "3", "4"]
    assert files.kept_count == 3
    files.close()
    assert files.kept_count == 0


def datasets() -> Path:
    folder = os.environ.get("RANKMEND_DATASETS")
    if not folder:
        pytest.skip("RANKMEND_DATASETS is not set")
    return Path(folder) / "sysfs"


def test_recorded_h100_node_is_read(tmp_path: Path) -> None:
    archive = datasets() / "infiniband-h100" / "sys-class-infiniband.tar.gz"
    root = tmp_path / "class" / "infiniband"
    root.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="data")

    values = collect(NicCollector(tmp_path))

    states = [name for name in values if name.startswith("nic_port_state_id")]
    assert len(states) == 9
    assert values["nic_link_downed_total{mlx5_1,1}"] == 255
    saturated = {name for name in values if name.startswith("nic_saturated")}
    assert "nic_saturated{mlx5_1,1,link_downed}" in saturated
    assert "nic_saturated{mlx5_0,1,excessive_buffer_overrun_errors}" in saturated
    assert values["nic_rate_bytes_per_second{mlx5_0,1}"] == 50e9
    assert values["nic_rate_bytes_per_second{mlx5_bond_0,1}"] == 25e9
    assert values["nic_receive_bytes_total{mlx5_0,1}"] == 4 * 230539874932483
    assert values["nic_hardware_total{mlx5_0,1,rx_dct_connect}"] == 422237
    assert {value for name, value in values.items() if name.startswith("nic_unreadable")} == {0}


def test_recorded_tree_with_cards_that_lack_counters_is_read(tmp_path: Path) -> None:
    unpack_ttar(datasets() / "node-exporter" / "sys.ttar", tmp_path)

    values = collect(NicCollector(tmp_path / "sys"))

    assert values["nic_rate_bytes_per_second{i40iw0,1}"] == 10e9 / 8
    counters = [name for name in values if "_total{i40iw0" in name]
    assert counters == []  # all of them are "N/A (no PMA)"
    assert values["nic_unreadable_files{i40iw0,1}"] == 0
    assert values["nic_saturated{mlx4_0,1,port_xmit_wait}"] == 1
    assert values["nic_hardware_total{mlx4_0,1,port_rcv_discards}"] == 0
    assert values["nic_receive_bytes_total{mlx4_0,1}"] == 4 * 4631917
    assert values["nic_port_state_id{mlx4_0,2}"] == 4


def test_tree_of_nothing_but_garbage_raises_nothing_unexpected(sys: Path) -> None:
    for path in sys.glob("devices/**/ports/**/*"):
        if path.is_file():
            path.write_bytes(b"\xff\x00garbage" * 5)

    values = collect(NicCollector(sys))

    assert values["nic_unreadable_files{mlx5_0,1}"] > 20
    assert "nic_port_state_id{mlx5_0,1}" not in values


def test_folder_that_vanishes_under_the_collector_is_survived(sys: Path) -> None:
    collector = NicCollector(sys)
    collect(collector)
    shutil.rmtree(port_of(sys, "mlx5_0").resolve() / "counters")

    for _run in range(RESCAN_RUNS):
        values = collect(collector)

    assert "nic_link_downed_total{mlx5_0,1}" not in values
    assert values["nic_port_state_id{mlx5_0,1}"] == 4


def test_folder_that_cannot_be_listed_costs_only_its_values(sys: Path) -> None:
    port = port_of(sys, "mlx5_0").resolve()
    shutil.rmtree(port / "counters")
    (port / "counters").symlink_to("counters")  # goes round: ELOOP
    ports = port_of(sys, "mlx5_1").resolve().parent
    shutil.rmtree(ports)
    ports.symlink_to("ports")
    device = sys / "class" / "infiniband" / "mlx5_2" / "device"
    device.unlink()
    device.symlink_to("device")

    values = collect(NicCollector(sys))

    assert values["nic_unreadable_files{mlx5_0,1}"] == 1
    assert values["nic_hardware_total{mlx5_0,1,np_cnp_sent}"] == 41
    assert values["nic_unreadable_files{mlx5_1,}"] == 1
    assert values["nic_port_state_id{mlx5_2,1}"] == 4


def test_name_that_is_no_text_does_not_break_the_page(sys: Path) -> None:
    counters = port_of(sys, "mlx5_0") / "hw_counters"
    (Path(os.fsdecode(bytes(counters) + b"/bad\xff"))).write_text("1\n")

    values = collect(NicCollector(sys))

    assert all(name.isprintable() for name in values)
    assert values["nic_hardware_total{mlx5_0,1,np_cnp_sent}"] == 41


def test_errors_are_read_every_5_s_and_what_shows_that_a_link_works_each_time(sys: Path) -> None:
    clock = FakeClock()
    collector = NicCollector(sys, clock=clock)
    collect(collector)
    for name in ("symbol_error", "link_downed", "port_xmit_data"):
        (port_of(sys, "mlx5_0") / "counters" / name).write_text("77\n", encoding="ascii")
    (port_of(sys, "mlx5_0") / "state").write_text("1: DOWN\n", encoding="ascii")

    clock.time_s += 1.0
    after_1_s = collect(collector)
    clock.time_s += 4.0
    after_5_s = collect(collector)

    assert after_1_s["nic_port_state_id{mlx5_0,1}"] == 1
    assert after_1_s["nic_link_downed_total{mlx5_0,1}"] == 77
    assert after_1_s["nic_transmit_bytes_total{mlx5_0,1}"] == 77 * 4
    assert after_1_s["nic_symbol_errors_total{mlx5_0,1}"] == 65534
    assert after_5_s["nic_symbol_errors_total{mlx5_0,1}"] == 77
