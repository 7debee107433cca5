"""Software RAID, bonds, the kernel's network stack and NFS, on a tree written by hand."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.bonding import BondingCollector
from agent.collectors.md import MdCollector, parse_completed
from agent.collectors.net_stack import NetStackCollector, parse_pairs, parse_softnet
from agent.collectors.nfs import NfsCollector, parse_mountstats
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import values_of
from tests.support.collectors import PROC, SYS


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROC, tmp_path / "proc"))


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SYS, tmp_path / "sys", symlinks=True))


def test_array_that_misses_a_member_tells_so_and_how_far_its_rebuild_is() -> None:
    values = values_of(list(MdCollector(SYS).collect()))

    assert values["md_members{md0}"] == 2
    assert values["md_members_missing{md0}"] == 1
    assert values["md_info{md0,raid1,clean}"] == 1
    assert values["md_sync_info{md0,recover}"] == 1
    assert values["md_sync_ratio{md0}"] == 0.25


def test_array_without_redundancy_has_no_missing_members_rather_than_zero() -> None:
    values = values_of(list(MdCollector(SYS).collect()))

    assert values["md_success{md1}"] == 1
    assert "md_members_missing{md1}" not in values


def test_array_whose_files_make_no_sense_costs_its_own_values_only(sys: Path) -> None:
    (sys / "block" / "md0" / "md" / "degraded").write_text("many\n")

    values = values_of(list(MdCollector(sys).collect()))

    assert values["md_success{md0}"] == 0
    assert "md_members_missing{md0}" not in values
    assert values["md_success{md1}"] == 1


def test_array_in_a_reshape_tells_its_new_number_of_members(sys: Path) -> None:
    (sys / "block" / "md0" / "md" / "raid_disks").write_text("4 (3)\n")

    values = values_of(list(MdCollector(sys).collect()))

    assert values["md_success{md0}"] == 1
    assert values["md_members{md0}"] == 4
    assert values["md_members_missing{md0}"] == 1


@pytest.mark.parametrize("raid_disks", ["\n", "", None])
def test_missing_members_are_told_without_a_number_of_members(
    sys: Path, raid_disks: str | None
) -> None:
    file = sys / "block" / "md0" / "md" / "raid_disks"
    file.unlink() if raid_disks is None else file.write_text(raid_disks)

    values = values_of(list(MdCollector(sys).collect()))

    assert values["md_success{md0}"] == 1
    assert "md_members{md0}" not in values
    assert values["md_members_missing{md0}"] == 1


def test_container_of_arrays_is_no_broken_array(sys: Path) -> None:
    md = sys / "block" / "md0" / "md"
    for name, text in (("level", "container"), ("raid_disks", ""), ("degraded", "")):
        (md / name).write_text(text)

    values = values_of(list(MdCollector(sys).collect()))

    assert values["md_success{md0}"] == 1
    assert values["md_info{md0,container,clean}"] == 1
    assert not [name for name in values if name.startswith("md_members") and "{md0}" in name]


@pytest.mark.parametrize(
    ("text", "share"), [("none", None), ("5 / 20", 0.25), ("0 / 0", None), ("delayed", None)]
)
def test_progress_of_a_rebuild_is_a_share(text: str, share: float | None) -> None:
    assert parse_completed(text) == share


def test_bond_tells_which_of_its_links_is_down() -> None:
    values = values_of(list(BondingCollector(SYS).collect()))

    assert values["bond_links{bond0}"] == 2
    assert values["bond_links_up{bond0}"] == 1
    assert values["bond_link_up{bond0,ens1f0}"] == 1
    assert values["bond_link_up{bond0,ens1f1}"] == 0
    assert values["bond_link_failures_total{bond0,ens1f1}"] == 3


def test_link_of_a_bond_that_vanished_is_not_called_up_or_down(sys: Path) -> None:
    shutil.rmtree(sys / "class" / "net" / "ens1f1")

    values = values_of(list(BondingCollector(sys).collect()))

    assert "bond_link_up{bond0,ens1f1}" not in values
    assert values["bond_links{bond0}"] == 2
    assert values["bond_links_up{bond0}"] == 1


def test_network_stack_tells_of_what_tcp_repeats_and_queues_drop() -> None:
    values = values_of(list(NetStackCollector(PROC).collect()))

    assert values["tcp_sent_segments_total"] == 2000
    assert values["tcp_retransmitted_segments_total"] == 30
    assert values["tcp_timeouts_total"] == 9
    assert values["tcp_listen_overflows_total"] == 7
    assert values["softnet_processed_total"] == 0x10F
    assert values["softnet_dropped_total"] == 1
    assert values["softnet_squeezed_total"] == 12
    assert values["conntrack_entries"] == 61000
    assert values["conntrack_entries_max"] == 65536


def test_kernel_without_connection_tracking_has_no_table_rather_than_an_empty_one(
    proc: Path,
) -> None:
    shutil.rmtree(proc / "sys" / "net")

    values = values_of(list(NetStackCollector(proc).collect()))

    assert not [name for name in values if name.startswith("conntrack")]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("net/snmp", "Tcp: A B\nTcp: 1\n"),
        ("net/netstat", ""),
        ("net/softnet_stat", "zz 0 0\n"),
        ("net/softnet_stat", "1 2\n"),
    ],
)
def test_one_bad_file_of_the_network_stack_costs_its_own_values_only(
    proc: Path, file: str, text: str
) -> None:
    (proc / file).write_text(text)

    values = values_of(list(NetStackCollector(proc).collect()))

    told = {name: value for name, value in values.items() if name.startswith("net_stack_success")}
    assert told.pop(f"net_stack_success{{{file}}}") == 0
    assert set(told.values()) == {1}


def test_nfs_mounts_tell_of_repetitions_time_outs_and_latency() -> None:
    values = values_of(list(NfsCollector(PROC).collect()))

    assert values["nfs_operations_total{/mnt/my data,nfs4}"] == 151
    assert values["nfs_retransmissions_total{/mnt/my data,nfs4}"] == 3
    assert values["nfs_timeouts_total{/mnt/my data,nfs4}"] == 1
    assert values["nfs_queue_seconds_total{/mnt/my data,nfs4}"] == 0.2
    assert values["nfs_response_seconds_total{/mnt/my data,nfs4}"] == 10.0
    assert values["nfs_operations_total{/home,nfs}"] == 7, "of an older kernel, a column less"


def test_node_without_raid_bonds_or_nfs_has_no_such_source(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountstats").write_text("device proc mounted on /proc with fstype proc\n")

    for collector in (
        MdCollector(tmp_path),
        BondingCollector(tmp_path),
        NfsCollector(tmp_path),
        NetStackCollector(tmp_path),
    ):
        with pytest.raises(NoSourceError):
            list(collector.collect())


def test_this_machine_is_read() -> None:
    values = values_of(list(NetStackCollector(Path("/proc")).collect()))

    assert values["tcp_sent_segments_total"] >= 0
    assert values["softnet_processed_total"] > 0


@given(st.text(max_size=300))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (parse_softnet, lambda text: parse_pairs(text, "Tcp")):
        try:
            parse(text)
        except SourceError:
            continue
    assert isinstance(parse_mountstats(text), list)
