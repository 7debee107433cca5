"""Kernel messages: the forms of logs, the rules, and the groups that a flood becomes."""

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detectors.kernel.event import EventKind, KernelEvent, pci_bus_id
from detectors.kernel.event_groups import GROUPS_MAX, KernelLogState
from detectors.kernel.log import Record, parse_kmsg, parse_line, parse_log
from detectors.kernel.rules.matcher import RULES, Matcher
from tests.support.kernel_log_forms import FORMS

DATASETS = os.environ.get("RANKMEND_DATASETS")
XID_95 = "NVRM: Xid (PCI:0000:3b:00): 95, pid=7, name=python3, Uncontained ECC error"


def event_of(text: str) -> KernelEvent | None:
    return Matcher().match(Record(text))


def events_of(*texts: str) -> list[KernelEvent]:
    matcher = Matcher()
    records = [Record(text, at_s=float(number)) for number, text in enumerate(texts)]
    return [event for record in records if (event := matcher.match(record)) is not None]


# --- records


def test_kmsg_record_gives_number_level_facility_and_dictionary() -> None:
    raw = "11,339,5140900,-,caller=T1;NET: a\\x5cb \\xc3\\xa9\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"

    record = parse_kmsg(raw)

    assert record == Record(
        text="NET: a\\b é",
        at_s=5.1409,
        level=3,
        facility=1,
        seq=339,
        fields=(("SUBSYSTEM", "pci"), ("DEVICE", "+pci:0000:3b:00.0")),
    )
    assert record is not None
    assert record.is_from_user


@pytest.mark.parametrize(
    ("line", "text", "at_s", "facility"),
    [
        ("3,12,5000001,-;foo: x", "foo: x", 5.000001, 0),
        ("[  123.456789] foo: x", "foo: x", 123.456789, None),
        ("[  123.456789][ T123] foo: x", "foo: x", 123.456789, None),
        ("[  123.456789] [ C3] foo: x", "foo: x", 123.456789, None),
        ("[Sun Feb 23 16:24:18 2025] foo: x", "foo: x", 1740327858.0, None),
        ("<3>[   12.5] foo: x", "foo: x", 12.5, 0),
        ("<11>[   12.5] foo: x", "foo: x", 12.5, 1),
        ("kern  :err   : [   12.5] foo: x", "foo: x", 12.5, 0),
        ("user  :err   : [   12.5] foo: x", "foo: x", 12.5, 1),
        ("[  +0.000012] foo: x", "foo: x", None, None),
        ("[Feb23 16:24] foo: x", "foo: x", None, None),
        ("[    2.5 <    0.000012>] foo: x", "foo: x", 2.5, None),
        ("2025-02-23T16:24:18,500000+01:00 foo: x", "foo: x", 1740324258.5, None),
        ("Feb 23 16:24:18 node1 kernel: foo: x", "foo: x", 951323058.0, 0),
        ("Feb 23 16:24:18 node1 kernel: [   12.5] foo: x", "foo: x", 951323058.0, 0),
        ("Feb  3 16:24:18 kernel: foo: x", "foo: x", 949595058.0, 0),
        ("Feb 23 16:24:18 node1 root[12]: foo: x", "foo: x", 951323058.0, 1),
        ("2025-02-23T16:24:18+0000 node1 kernel: foo: x", "foo: x", 1740327858.0, 0),
        ("2025-02-23T16:24:18.25+00:00 n kernel: [  1.0] foo: x", "foo: x", 1740327858.25, 0),
        ("[12.5] node1 kernel: foo: x", "foo: x", 12.5, 0),
        ("1740327858.5 node1 kernel: foo: x", "foo: x", 1740327858.5, 0),
        ("Sun 2025-02-23 16:24:18 UTC node1 kernel: foo: x", "foo: x", 1740327858.0, 0),
        ("Feb 31 16:24:18 node1 kernel: foo: x", "foo: x", None, 0),
        ("foo: x", "foo: x", None, None),
        ("<3>1 2025-02-23T16:24:18Z n kernel - - - foo: x", "foo: x", 1740327858.0, 0),
        ('<3>1 2025-02-23T16:24:18Z n kernel - - [a b="c"] foo: x', "foo: x", 1740327858.0, 0),
        ("<11>1 2025-02-23T16:24:18Z n root 12 - - foo: x", "foo: x", 1740327858.0, 1),
        ("2025-02-23T16:24:18Z NVRM: x", "NVRM: x", 1740327858.0, None),
        ("2025-02-23T16:24:18Z root[12]: foo: x", "foo: x", 1740327858.0, 1),
        ("\ufeff[   12.5] foo: x", "foo: x", 12.5, None),
        ("\x1b[32m[   12.5] \x1b[0m\x1b[33mfoo: \x1b[0mx", "foo: x", 12.5, None),
        ("[   12.5] foo: x\r", "foo: x", 12.5, None),
    ],
)
def test_each_form_of_log_line_is_understood(
    line: str, text: str, at_s: float | None, facility: int | None
) -> None:
    record = parse_line(line + "\n")

    assert (record.text, record.at_s, record.facility) == (text, at_s, facility)


def test_dictionary_lines_belong_to_the_record_before_them() -> None:
    lines = ["6,1,10,-;a\n", " SUBSYSTEM=pci\n", " DEVICE=+pci:0000:3b:00.0\n", "6,2,11,-;b\n"]

    first, second = parse_log(lines)

    assert first.fields == (("SUBSYSTEM", "pci"), ("DEVICE", "+pci:0000:3b:00.0"))
    assert (second.text, second.fields) == ("b", ())


GPU_GONE = (
    "NVRM: The NVIDIA GPU 0000:e1:00.0",
    "NVRM: (PCI ID: 10de:20b2)",
    "NVRM: installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def test_indented_lines_are_the_rest_of_a_message_of_several_lines() -> None:
    head, *rest = GPU_GONE
    lines = [f"[   12.345678] {head}\n", *(f"{' ' * 15}{line}\n" for line in rest), "[   13.0] b\n"]

    first, second = parse_log(lines)

    assert first.text == "\n".join(GPU_GONE)
    assert (first.at_s, second.text) == (12.345678, "b")


def test_a_message_of_several_lines_names_its_gpu() -> None:
    record = parse_kmsg("3,1,1,-;" + "\\x0a".join(GPU_GONE))

    assert record is not None
    event = Matcher().match(record)
    assert event is not None
    assert (event.kind, event.device) == (EventKind.GPU_LOST, "0000:e1:00.0")


@given(st.text())
@example("<999>[ 1.1] x")
@example("9999999999999,1,1,-;x")
@example("2025-13-45T99:99:99+99:99 h kernel: x")
@example("Feb 29 24:61:61 h kernel: x")
def test_no_line_raises(line: str) -> None:
    record = parse_line(line)
    parse_kmsg(line)

    assert len(record.text) <= 2_048


# --- rules


@pytest.mark.parametrize(("text", "expected"), FORMS)
def test_each_documented_form_becomes_its_event(
    text: str, expected: tuple[EventKind, int | None, str, str, int | None, str]
) -> None:
    event = event_of(text)

    assert event is not None
    found = (event.kind, event.code, event.sub_code, event.device, event.pid, event.process)
    assert found == expected


@pytest.mark.parametrize(("text", "expected"), FORMS)
def test_each_form_is_found_at_the_begin_of_a_message_and_not_in_the_middle_of_one(
    text: str, expected: tuple[EventKind, int | None, str, str, int | None, str]
) -> None:
    whole = Matcher().match(Record(text, at_s=1_000.0, facility=0))
    forged = Matcher().match(
        Record(f"process '{text}' launched '/tmp/{text}'", at_s=1.0, facility=0)
    )

    assert whole is not None
    assert (whole.kind, whole.device) == (expected[0], expected[3])
    assert forged is None


def test_every_kind_has_a_form_in_this_table() -> None:
    own_log = {EventKind.FABRIC_DOWN, EventKind.FABRIC_MULTICAST}  # cases.toml has their lines

    assert {expected[0] for _text, expected in FORMS} == set(EventKind) - own_log


@pytest.mark.parametrize(
    "text",
    [
        "ata1: SATA link down (SStatus 0 SControl 300)",
        "IPv6: ADDRCONF(NETDEV_CHANGE): cali21960952cd0: link becomes ready",
        "NVRM: GPU4 GSP RPC buffer contains function 103 (GSP_RM_ALLOC) and data 0x0",
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Data {0x00000000, 0x00000001}",
        "{1}[Hardware Error]: event severity: info",
        "mce: CPU3: Core temperature/speed normal",
        "oom_reaper: reaped process 812 (python3), now anon-rss:0kB",
        "nfs: server nas1 OK",
        "mlx5_core 0000:98:00.0: print_health_info:424:(pid 0): Health issue observed, clock "
        "failure, severity(4) WARNING:",
        "libceph: osd3 (1)10.1.1.1:6801 socket closed (con state OPEN)",
        "NET: Registered PF_SMC protocol family, smc link down",
        "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
        "EDAC MC0: Giving out device to module skx_edac",
        "amdgpu 0000:c1:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:c1:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset(3) succeeded!",
        "amdgpu 0000:c1:00.0: [drm] *ERROR* ring gfx timeout, but soft recovered",
        "i801_smbus: probe of 0000:00:1f.4 failed with error -16",
        "pcieport 0000:00:1c.0: not ready 1023ms after FLR; waiting",
        "DMAR: DRHD: handling fault status reg 2",
        "AMD-Vi: Interrupt remapping enabled",
        "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0",
        "Buffer I/O error on dev fd0, logical block 0, async page read",
        "I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
        "sr 1:0:0:0: [sr0] tag#0 Sense Key : Medium Error [current]",
        "critical medium error, dev sr0, sector 1024 op 0x0:(READ) flags 0x80700",
        "I/O error, dev loop3, sector 0 op 0x0:(READ) flags 0x0",
        "Buffer I/O error on dev loop3p1, logical block 0, async page read",
        "I/O error, dev nbd0, sector 0 op 0x0:(READ)",
        "critical target error, dev nbd15, sector 0 op 0x9:(WRITE_ZEROES)",
        "Buffer I/O error on device zram1, logical block 12",
        "BTRFS error (device sdb): unrecognized mount option 'foo'",
        "BTRFS error (device sdb): unrecognized or unsupported super flag: 34359738368",
        "BTRFS error (device sdb1): open_ctree failed: -22",
        "BTRFS error (device sdb1 state C): open_ctree failed",
        "BTRFS: error (device sdb1): cannot mount because of unknown incompat features (0x4000)",
        "BTRFS error (device sdb): couldn't mount because of unsupported optional features (4000)",
        "BTRFS error (device sdb): sectorsize 65536 not yet supported for page size 4096",
        "BTRFS error (device sdb): failed to read chunk tree: -2",
        "BTRFS error (device sdb): failed to read the system array: -2",
        "BTRFS: device fsid 1f-2e devid 1 transid 8 /dev/sdb scanned by mount (812)",
        "EXT4-fs (sda): VFS: Can't find ext4 filesystem",
        "EXT4-fs (sda): unable to read superblock",
        "EXT4-fs (sda1): bad geometry: block count 5 exceeds size of device (4 blocks)",
        "EXT4-fs (sda1): couldn't mount as ext3 due to feature incompatibilities",
        "EXT4-fs: Unknown parameter 'foo'",
        "XFS (sdb1): Invalid superblock magic number",
        "XFS (sdb1): SB validate failed with error -22.",
        "XFS (sdb1): Filesystem has duplicate UUID 7d-1 - can't mount",
        "XFS (sdb1): Superblock has unknown read-only compatible features (0x8) enabled.",
        "XFS (dm-3): Mounting V5 Filesystem",
        "XFS (dm-3): User initiated shutdown received. Shutting down filesystem",
        "XFS (dm-3): Please unmount the filesystem and rectify the problem(s)",
        "device-mapper: multipath: 253:3: Reinstating path 8:16.",
        "md/raid1:md0: active with 2 out of 2 mirrors",
        "beegfs: mount(1516568): BeeGFS mount ready.",
        "Lustre: Mounted scratch-client",
        "LNet: Added LNI 10.0.0.2@o2ib [8/256/0/180]",
        "mlx5_core 0000:ab:00.0: firmware version: 28.39.1002",
        "tsc: Marking TSC unstable due to TSCs unsynchronized",
        "PCIe Link is DOWN",
        "Adapter Link down, cannot blink LED",
        "{1}[Hardware Error]: event severity: corrected",
        "nvme nvme0: 64/0/0 default/read/poll queues",
        "",
    ],
)
def test_lines_that_tell_of_no_fault_are_no_event(text: str) -> None:
    assert event_of(text) is None


def test_aer_announcement_and_its_detail_are_one_event() -> None:
    announced = "pcieport 0000:00:01.0: AER: Corrected error message received from 0000:01:00.0"
    detail = (
        "nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    )

    assert len(events_of(announced, detail, announced, detail)) == 2
    assert len(events_of(announced, announced)) == 2
    assert len(events_of(detail, detail)) == 2


def pulled(*texts: str, start_s: float = 10.0) -> list[str]:
    matcher = Matcher()
    records = [Record(text, at_s=start_s + number) for number, text in enumerate(texts)]
    events = [matcher.match(record) for record in records]
    return [event.sub_code for event in events if event is not None]


LOADED = "mlx5_core 0000:41:00.1: firmware version: 28.39.1002"
PLUGGED = "mlx5_core 0000:41:00.1: Port module event: module 1, Cable plugged"
UNPLUGGED = "mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged"
NO_HSN = "cxi_core 0000:c1:00.0: cxi0[hsn0]: HSN cable is not plugged"


@pytest.mark.parametrize(
    ("texts", "start_s", "expected"),
    [
        ((UNPLUGGED,), 2.962781, []),  # at boot: the cage is empty
        ((LOADED, UNPLUGGED), 90_000.0, []),  # the driver was loaded anew
        ((LOADED, PLUGGED, UNPLUGGED), 2.0, ["Cable unplugged"]),
        ((LOADED, PLUGGED, LOADED, UNPLUGGED), 2.0, []),
        ((UNPLUGGED,), 90_000.0, ["Cable unplugged"]),  # long after: a pull
        ((PLUGGED, UNPLUGGED, UNPLUGGED), 90_000.0, ["Cable unplugged"]),  # told once
        ((LOADED, PLUGGED), 2.0, []),
        ((NO_HSN,), 44.0, []),
        ((NO_HSN,), 90_000.0, ["HSN cable is not plugged"]),
    ],
)
def test_cage_that_was_empty_from_the_start_is_no_pulled_cable(
    texts: tuple[str, ...], start_s: float, expected: list[str]
) -> None:
    assert pulled(*texts, start_s=start_s) == expected


def test_disk_that_was_taken_away_on_purpose_is_no_lost_path() -> None:
    removal = 'nvme nvme0: Removing ctrl: NQN "nqn.2014-08.org.example:scratch"'
    failed = "block nvme0n1: no available path - failing I/O"

    assert events_of(removal, failed, failed) == []
    assert len(events_of(failed)) == 1
    assert len(events_of(removal, *["x"] * 10, failed)) == 1


def test_disk_whose_file_system_was_just_unmounted_is_no_lost_path() -> None:
    unmounted = "EXT4-fs (nvme0n1): unmounting filesystem c2a0e280-a012-4aaf-9684-ce04020a5a0e."
    failed = "block nvme0n1: no available path - failing I/O"

    assert events_of(unmounted, failed) == []
    assert len(events_of(unmounted, *["x"] * 70, failed)) == 1
    assert len(events_of(unmounted, failed.replace("nvme0n1", "nvme1n1"))) == 1
    assert len(events_of(unmounted.replace("nvme0n1", "nvme0n1p1"), failed)) == 1


@pytest.mark.parametrize(
    ("severity", "section", "kind", "device"),
    [
        ("recoverable", "PCIe error", EventKind.PCIE_UNCORRECTED, "0000:3b:00.0"),
        ("corrected", "PCIe error", EventKind.PCIE_CORRECTED, "0000:3b:00.0"),
        ("recoverable", "memory error", EventKind.MEMORY_UNCORRECTED, ""),
        ("corrected", "memory error", EventKind.MEMORY_CORRECTED, ""),
        ("recoverable", "general processor error", EventKind.MACHINE_CHECK, ""),
        ("corrected", "ARM processor error", EventKind.MACHINE_CHECK_CORRECTED, ""),
        ("fatal", "PCIe error", EventKind.MACHINE_CHECK, ""),
    ],
)
def test_error_that_firmware_reports_is_the_event_of_its_section(
    severity: str, section: str, kind: EventKind, device: str
) -> None:
    events = events_of(
        "{7}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4",
        f"{{7}}[Hardware Error]: event severity: {severity}",
        f"{{7}}[Hardware Error]:  Error 0, type: {severity}",
        f"{{7}}[Hardware Error]:   section_type: {section}",
        "{7}[Hardware Error]:   port_type: 0, PCIe end point",
        "{7}[Hardware Error]:   device_id: 0000:3b:00.0",
    )

    assert [(event.kind, event.device) for event in events] == [(kind, device)]


def test_an_oops_of_several_lines_is_one_event() -> None:
    events = events_of(
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "#PF: supervisor read access in kernel mode",
        "Oops: 0000 [#1] PREEMPT SMP NOPTI",
        "---[ end trace 0000000000000000 ]---",
    )

    assert [event.kind for event in events] == [EventKind.OOPS]


def test_oom_kill_names_the_cgroup_of_the_line_before() -> None:
    events = events_of(
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
        "oom_memcg=/slurm/job_7,task_memcg=/slurm/job_7/step_0,task=python3,pid=4242,uid=1000",
        "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB",
        "Out of memory: Killed process 5 (other) total-vm:1kB",
    )

    assert [(e.pid, e.process, e.sub_code, e.cgroup) for e in events] == [
        (4242, "python3", "cgroup", "/slurm/job_7/step_0"),
        (5, "other", "node", ""),
    ]


def test_oom_kill_of_a_kernel_before_4_19_names_its_cgroup() -> None:
    events = events_of(
        "Task in /slurm/uid_0/job_7 killed as a result of limit of /slurm/uid_0",
        "Memory cgroup out of memory: Kill process 4242 (python3) score 999 or sacrifice child",
        "Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
        "Out of memory: Kill process 5 (other) score 9 or sacrifice child",
        "Killed process 5 (other), UID 0, total-vm:1kB",
    )

    assert [(e.pid, e.process, e.sub_code, e.cgroup) for e in events] == [
        (4242, "python3", "cgroup", "/slurm/uid_0/job_7"),
        (5, "other", "node", ""),
    ]


def test_a_disks_sense_data_and_its_error_are_one_event() -> None:
    events = events_of(
        "sd 0:0:0:0: [sda] tag#1 Sense Key : Medium Error [current]",
        "critical medium error, dev sda, sector 123 op 0x0:(READ) flags 0x0",
    )

    assert [(e.kind, e.device) for e in events] == [(EventKind.MEDIUM_ERROR, "sda")]


def test_registers_of_nvlink_events_are_kept() -> None:
    event = event_of(
        "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x8 0x1)"
    )

    assert event is not None
    assert event.registers == (0x0409A0C2, 0x8, 0x1)


def test_device_of_the_dictionary_stands_in_where_the_text_names_none() -> None:
    record = Record("NVRM: API mismatch", fields=(("DEVICE", "+pci:0000:3b:00.0"),))

    event = Matcher().match(record)

    assert event is not None
    assert event.device == "0000:3b:00.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:9B:00", "0000:9b:00.0"),
        ("00000000:91:00.0", "0000:91:00.0"),
        ("3b:00", "0000:3b:00.0"),
        ("10000:e1:00.1", "10000:e1:00.1"),
        ("whatever", "whatever"),
    ],
)
def test_pci_address_has_one_form_whoever_wrote_it(text: str, expected: str) -> None:
    assert pci_bus_id(text) == expected


def test_the_pattern_of_every_rule_can_be_compiled() -> None:
    for rule in RULES:  # each is compiled when a text first needs it, where nobody would see
        assert rule.match("no text of the kernel", is_whole=True) is None


@given(st.text(max_size=300))
def test_no_text_raises_in_any_rule(text: str) -> None:
    for rule in RULES:
        Matcher().match(Record(f"{rule.literal}{text}"))
        Matcher().match(Record(f"{text}{rule.literal}"))


@given(st.data())
def test_a_form_with_characters_changed_never_raises(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([text for text, _expected in FORMS]))
    place = data.draw(st.integers(0, len(text)))
    inserted = data.draw(st.text(max_size=8))

    Matcher().match(Record(text[:place] + inserted + text[place + len(inserted) :]))


# --- groups


def flood(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"3,{number},{number * 10},-;{XID_95}\n"


@pytest.mark.thorough
def test_800_000_equal_lines_are_one_group_and_a_count_in_bounded_memory() -> None:
    state = KernelLogState()
    state.feed_all(parse_log(flood(1_000)))
    tracemalloc.start()
    try:
        state.feed_all(parse_log(flood(20_000)))
        _now, traced_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    state.feed_all(parse_log(flood(779_000)))

    (group,) = state.groups()

    assert (group.kind, group.code, group.device) == (EventKind.XID, 95, "0000:3b:00.0")
    assert group.count == state.records == 800_000
    assert len(group.bursts) == 1
    assert traced_peak < 100_000


def test_groups_have_a_limit_and_no_event_goes_uncounted() -> None:
    state = KernelLogState()

    for number in range(5_000):
        bus = f"{number >> 8:04x}:{number & 0xFF:02x}:00"
        state.feed(Record(f"NVRM: Xid (PCI:{bus}): {number % 90 + 1}, x"))
        state.feed(Record(f"eth{number}: Link is Down"))

    groups = state.groups()
    assert len(groups) <= GROUPS_MAX + len(EventKind)
    assert sum(group.count for group in groups) == state.events == 10_000
    assert state.overflowed == 10_000 - GROUPS_MAX


def test_a_message_of_many_memory_errors_counts_them_all() -> None:
    state = KernelLogState()

    state.feed(Record("EDAC MC0: 7 CE memory read error on DIMM_A1 (channel:1)"))

    assert [group.count for group in state.groups()] == [7]


def test_what_a_process_wrote_is_counted_and_not_believed() -> None:
    state, trusting = KernelLogState(), KernelLogState(trusts_user=True)
    spoof = Record(XID_95, facility=1)

    for one in (state, trusting):
        one.feed(spoof)
        one.feed(Record("hello", facility=1))

    assert (state.events, state.untrusted, state.records) == (0, 1, 2)
    assert (trusting.events, trusting.untrusted) == (1, 0)


def test_bursts_are_apart_by_three_minutes() -> None:
    state = KernelLogState()

    for at_s in (10.0, 11.0, 189.0, 380.0, 381.0):
        state.feed(Record(XID_95, at_s=at_s))

    (group,) = state.groups()
    assert group.bursts == ((10.0, 189.0), (380.0, 381.0))


def test_state_goes_on_from_its_snapshot() -> None:
    whole, first = KernelLogState(), KernelLogState()
    records = [Record(XID_95, at_s=float(at)) for at in range(0, 1_000, 100)]
    whole.feed_all(records)

    first.feed_all(records[:4])
    second = KernelLogState(old=first.snapshot())
    second.feed_all(records[4:])

    assert second.snapshot() == whole.snapshot()


# --- recorded logs


@pytest.mark.skipif(DATASETS is None, reason="RANKMEND_DATASETS is unset")
def test_recorded_gsp_timeout_is_five_xids_119_of_one_gpu() -> None:
    assert DATASETS is not None
    path = Path(DATASETS) / "kernel-logs" / "dmesg-with-xid-119.log"
    state = KernelLogState()

    state.feed_all(parse_log(path.read_text().splitlines()))

    found = {(group.kind, group.code, group.device): group.count for group in state.groups()}
    assert found == {
        (EventKind.XID, 119, "0000:9b:00.0"): 5,
        (EventKind.GSP, None, "0000:9b:00.0"): 1,
    }


@pytest.mark.skipif(DATASETS is None, reason="RANKMEND_DATASETS is unset")
def test_recorded_kmsg_of_a_healthy_node_tells_of_no_fault() -> None:
    assert DATASETS is not None
    text = (Path(DATASETS) / "kernel-logs" / "kmsg.1.log").read_text()
    records = list(parse_log(text.splitlines()))
    state = KernelLogState()

    state.feed_all(records)

    assert all(record.seq is not None for record in records)
    assert (state.records, state.groups()) == (len(text.splitlines()), ())


XID79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "line",
    [
        f"Dec 31 23:59:59 gpu-01 vmunix: [ 5678.901234] {XID79}",
        f"Dec 31 23:59:59 2025 gpu-01 kernel: {XID79}",
        f"Dec 31 23:59:59 gpu-01 user.warn kernel: [ 5678.901234] {XID79}",
        f"Dec 31 23:59:59 gpu-01 kern.err kernel: {XID79}",
        f"2025-12-31T23:59:59.123456789Z stderr F {XID79}",
        f"2025-12-31T23:59:59.123456789+01:00 stdout F [ 5678.901234] {XID79}",
    ],
)
def test_forms_of_other_log_daemons_are_read(line: str) -> None:
    record = parse_line(line)

    assert record.text == XID79
    assert not record.is_from_user
    assert record.at_s is not None


def test_a_year_behind_the_clock_counts() -> None:
    with_year = parse_line(f"Dec 31 23:59:59 2025 gpu-01 kernel: {XID79}")
    without = parse_line(f"Dec 31 23:59:59 gpu-01 kernel: {XID79}")

    assert with_year.at_s == 1_767_225_599.0
    assert without.at_s == 978_307_199.0  # in the year 2000, for want of another
