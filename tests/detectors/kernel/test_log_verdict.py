"""The policy table for kernel events, and what XIDs mean together."""

import contextlib
import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.findings.policy_files import load_policy
from detectors.finding import Action, Severity
from detectors.kernel.event import EventKind
from detectors.kernel.event_groups import KernelLogState
from detectors.kernel.event_policy import (
    COLUMNS,
    SOURCE_COLUMNS,
    EventTable,
    complete,
    parse_policy,
    policy_of,
)
from detectors.kernel.log import Record
from detectors.kernel.log_cases import KernelFinding
from detectors.kernel.log_verdict import judge, judge_xids
from rankmend.errors import ConfigError
from tests.support.agent import ROOT

POLICY = load_policy()
GPU = "0000:3b:00"
DAY_S = 86_400.0


def xid(code: int, details: str = "", gpu: str = GPU) -> str:
    return f"NVRM: Xid (PCI:{gpu}): {code}, pid=7, name=python3, {details}"


def findings_of(
    *messages: str | tuple[float, str], now_s: float | None = None
) -> list[KernelFinding]:
    """Judge messages; one without a time comes a second after the one before."""
    state = KernelLogState()
    at_s = 0.0
    for message in messages:
        at_s, text = message if isinstance(message, tuple) else (at_s + 1, message)
        state.feed(Record(text, at_s=at_s))
    return list(judge(state.groups(), POLICY, now_s))


def verdicts(findings: list[KernelFinding]) -> dict[int | None, tuple[Severity, Action]]:
    return {finding.code: (finding.severity, finding.action) for finding in findings}


# --- the table


@pytest.mark.parametrize(
    ("code", "severity", "action", "hardware"),
    [
        (13, Severity.WARNING, Action.RESTART_APP, False),
        (38, Severity.INFO, Action.NONE, False),  # NVIDIA: IGNORE, where gpud says reboot
        (43, Severity.INFO, Action.NONE, False),
        (45, Severity.INFO, Action.NONE, False),
        (48, Severity.CRITICAL, Action.RESET_GPU, True),
        (63, Severity.WARNING, Action.WATCH, True),
        (64, Severity.CRITICAL, Action.RESET_GPU, True),
        (74, Severity.CRITICAL, Action.RESET_GPU, True),
        (79, Severity.CRITICAL, Action.REBOOT, True),
        (94, Severity.WARNING, Action.RESTART_APP, True),
        (95, Severity.CRITICAL, Action.RESET_GPU, True),
        (106, Severity.INFO, Action.NONE, False),  # a test message
        (119, Severity.CRITICAL, Action.RESET_GPU, False),
        (121, Severity.WARNING, Action.WATCH, True),
        (163, Severity.WARNING, Action.WATCH, True),
        (99_000, Severity.WARNING, Action.WATCH, False),  # unknown: not critical
    ],
)
def test_shipped_table_follows_nvidias_catalog(
    code: int, severity: Severity, action: Action, hardware: bool
) -> None:
    row = policy_of(POLICY, EventKind.XID, code)

    assert (row.severity, row.action, row.blames_hardware) == (severity, action, hardware)


def test_shipped_table_names_every_code_of_the_catalog_and_has_a_source_in_each_row() -> None:
    xids = {int(code) for table, code in POLICY if table is EventTable.XID and code != "*"}
    sxids = {int(code) for table, code in POLICY if table is EventTable.SXID and code != "*"}

    assert xids >= {*range(144, 174), 13, 31, 48, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143}
    assert (len(xids), len(sxids)) == (173, 92)
    assert all(row.source and row.meaning and row.name for row in POLICY.values())


def row(**changed: str) -> str:
    cells = {
        "table": "xid",
        "code": "43",
        "name": "N",
        "severity": "critical",
        "action": "drain",
        "hardware": "yes",
        "source": "our site",
        "meaning": "m",
    }
    return ",".join((cells | changed)[column] for column in COLUMNS)


HEADER = ",".join(COLUMNS)


def test_rows_of_the_site_win_and_leave_the_others(tmp_path: Path) -> None:
    path = tmp_path / "site.csv"
    path.write_text(f"{HEADER}\n# aws/eks-node-monitoring-agent#272\n{row()}\n")

    table = load_policy(path)

    assert policy_of(table, EventKind.XID, 43).action is Action.DRAIN
    assert policy_of(table, EventKind.XID, 79).action is Action.REBOOT


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the first line is"),
        ("a,b\n", "the first line is"),
        (f"{HEADER}\nxid,1\n", "line 2: 2 cells instead of 8"),
        (f"{HEADER}\n{row(table='gpu')}\n", "table is 'gpu', not one of xid, sxid, nvlink5"),
        (f"{HEADER}\n{row(code='x')}\n", "code 'x' is neither"),
        (f"{HEADER}\n{row(code='0')}\n", "code '0' is neither"),
        (f"{HEADER}\n{row(code='²')}\n", "is neither"),
        (f"{HEADER}\n{row(code='9' * 5_000)}\n", "is neither"),
        (f"{HEADER}\n{row(severity='fatal')}\n", "severity is 'fatal', not one of info, warning"),
        (f"{HEADER}\n{row(action='pray')}\n", "action is 'pray', not one of none, watch"),
        (f"{HEADER}\n{row(hardware='maybe')}\n", "hardware is 'maybe', not yes or no"),
        (f"{HEADER}\n{row(source=' ')}\n", "no source"),
        (f"{HEADER}\n{row()}\n{row(code='043')}\n", "line 3: xid 43 a second time"),
        (f"{HEADER}\n{row(table='log', code='x')}\n", "no kind of event 'x'"),
        (f'{HEADER}\nxid,"1\n', "unexpected end of data"),
    ],
)
def test_a_wrong_table_is_refused_by_name_line_and_value(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "site.csv"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_policy(path)

    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_table_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")

    for path in (tmp_path / "none.csv", tmp_path, binary):
        with pytest.raises(ConfigError, match=str(path)):
            load_policy(path)


def test_a_table_without_a_row_for_a_kind_is_refused() -> None:
    rows = {key: value for key, value in POLICY.items() if key[1] not in ("oom_kill", "*")}

    with pytest.raises(ConfigError, match=r"no row for xid \*, sxid \*, verdict \*, log oom_kill"):
        complete(rows, "x")


@given(st.text())
def test_no_table_raises_anything_but_config_errors(text: str) -> None:
    for whole in (text, f"{HEADER}\n{text}"):
        with contextlib.suppress(ConfigError):
            parse_policy(whole, "x")


def test_shipped_table_can_be_read_by_a_spreadsheet() -> None:
    path = ROOT / "detectors" / "data" / "kernel_log.csv"

    with path.open(newline="") as file:
        widths = {len(cells) for cells in csv.reader(file)}

    assert widths == {len(COLUMNS) + len(SOURCE_COLUMNS)}


# --- what a later line withdraws


@pytest.mark.parametrize(
    ("down", "up"),
    [
        (
            "pcieport 0000:64:01.0: pciehp: Slot(12): Link Down",
            "pcieport 0000:64:01.0: pciehp: Slot(12): Card present",
        ),
        (
            "pcieport 0000:64:01.0: pciehp: Slot(12): Card not present",
            "pcieport 0000:64:01.0: pciehp: Slot(12): Link Up",
        ),
        (
            "bond0: (slave eno1): link status definitely down, disabling slave",
            "bond0: (slave eno1): link status definitely up, 25000 Mbps full duplex",
        ),
    ],
)
def test_a_link_that_is_up_again_however_late_is_info_until_it_goes_down_again(
    down: str, up: str
) -> None:
    def severity(*messages: str | tuple[float, str]) -> Severity:
        (found,) = [one for one in findings_of(*messages) if one.action is not Action.NONE]
        return found.severity

    assert severity(down) is Severity.WARNING
    assert severity(down, (DAY_S, up)) is Severity.INFO
    assert severity(down, up, down) is Severity.WARNING


def test_the_slot_of_a_pulled_disk_is_to_be_watched_and_not_a_reason_to_reboot() -> None:
    (finding,) = findings_of(
        "pcieport 0000:64:01.0: pciehp: Slot(12): Link Down",
        "pcieport 0000:64:01.0: pciehp: Slot(12): Card not present",
    )

    assert (finding.severity, finding.action) == (Severity.WARNING, Action.WATCH)


def test_another_slot_withdraws_nothing() -> None:
    findings = findings_of(
        "pcieport 0000:64:01.0: pciehp: Slot(12): Link Down",
        "pcieport 0000:65:01.0: pciehp: Slot(13): Link Up",
    )

    assert [finding.severity for finding in findings] == [Severity.WARNING, Severity.INFO]


# --- cascades


def test_45_after_another_xid_is_its_victim() -> None:
    findings = findings_of(xid(79, "GPU has fallen off the bus."), xid(45, "Ch 00000008"))

    assert [finding.code for finding in findings] == [79, 45]
    assert findings[1].reason == "cleanup after XID 79: a victim"
    assert verdicts(findings)[45] == (Severity.INFO, Action.NONE)


def test_45_says_itself_which_xid_of_another_gpu_brought_it_about() -> None:
    findings = findings_of(
        xid(149, "NETIR Fatal XC0 i0 Link 1 (0x1 0x0)", "0000:9c:00"),
        xid(45, "Ch 00000001 caused by previous Xid 149"),
    )

    assert findings[1].reason == "cleanup after XID 149: a victim"


def test_672_times_45_in_normal_churn_ask_for_nothing() -> None:
    messages = [(number * 300.0, xid(45, f"Ch {number:08d}")) for number in range(672)]

    (finding,) = findings_of(*messages)

    assert (finding.severity, finding.action, finding.count) == (Severity.INFO, Action.NONE, 672)


def test_double_bit_error_with_a_remapped_row_is_one_drain() -> None:
    alone = findings_of(xid(48, "DBE"))
    together = findings_of(xid(48, "DBE"), xid(63, "Row Remapper: New row marked"))

    assert verdicts(alone) == {48: (Severity.CRITICAL, Action.RESET_GPU)}
    assert verdicts(together) == {
        48: (Severity.CRITICAL, Action.DRAIN),
        63: (Severity.INFO, Action.NONE),
    }


def test_remap_long_after_the_error_or_on_another_gpu_stands_alone() -> None:
    later = findings_of((0.0, xid(48)), (901.0, xid(63)))
    elsewhere = findings_of(xid(48), xid(63, gpu="0000:9c:00"))

    for findings in (later, elsewhere):
        assert verdicts(findings) == {
            48: (Severity.CRITICAL, Action.RESET_GPU),
            63: (Severity.WARNING, Action.WATCH),
        }


def test_contained_error_restarts_the_program_and_its_remap_says_see_there() -> None:
    findings = findings_of(xid(94, "Contained"), xid(63))

    assert verdicts(findings) == {
        94: (Severity.WARNING, Action.RESTART_APP),
        63: (Severity.INFO, Action.NONE),
    }


def test_details_of_a_double_bit_error_are_told_with_it() -> None:
    findings = findings_of(xid(48), xid(171, "Uncorrectable DRAM error"))

    assert verdicts(findings)[171] == (Severity.INFO, Action.NONE)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("0x0 (None) to 0x1 (GPU Reset Required)", Action.RESET_GPU),
        ("0x0 (None) to 0x2 (Node Reboot Required)", Action.REBOOT),
        ("0x0 (None) to 0x3 (Drain P2P)", Action.DRAIN),
        ("0x0 (None) to 0x4 (Drain and Reset)", Action.DRAIN),
        ("0x0 (None) to 0x5 (IMEX)", Action.DRAIN),
        ("0x0 (None) to 0x7 (System Reboot)", Action.REBOOT),
        ("0x0 (None) to 0x9 (Something New)", Action.CONTACT_SUPPORT),
    ],
)
def test_driver_verdict_wins_over_the_table(text: str, action: Action) -> None:
    findings = findings_of(xid(95), xid(154, f"GPU recovery action changed from {text}"))

    assert verdicts(findings) == {
        95: (Severity.CRITICAL, action),
        154: (Severity.CRITICAL, action),
    }
    assert all("the driver's verdict" in finding.reason for finding in findings)


def test_driver_verdict_does_not_make_a_programs_error_a_devices() -> None:
    findings = findings_of(
        xid(31, "MMU Fault"),
        xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
    )

    assert verdicts(findings)[31] == (Severity.WARNING, Action.RESTART_APP)


def test_verdict_that_was_taken_back_ends_what_was_before_it_and_nothing_after() -> None:
    findings = findings_of(
        xid(95),
        xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
        xid(79),
    )

    assert verdicts(findings) == {
        95: (Severity.INFO, Action.NONE),
        154: (Severity.INFO, Action.NONE),
        79: (Severity.CRITICAL, Action.REBOOT),
    }


def test_verdict_without_its_text_is_watched() -> None:
    assert verdicts(findings_of(xid(154, "???"))) == {154: (Severity.WARNING, Action.WATCH)}


def test_162_cancels_the_163_before_it_only() -> None:
    cancelled = findings_of(xid(163), xid(162))
    again = findings_of(xid(162), xid(163))

    assert verdicts(cancelled)[163] == (Severity.INFO, Action.NONE)
    assert verdicts(again)[163] == (Severity.WARNING, Action.WATCH)


def test_gpu_lost_and_gsp_lines_are_told_with_their_xid() -> None:
    lost = findings_of(xid(79), f"NVRM: GPU {GPU}.0: GPU has fallen off the bus.")
    gsp = findings_of(
        xid(119),
        f"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:{GPU} (printing 1 of every 30)",
    )
    alone = findings_of(f"NVRM: GPU {GPU}.0: GPU has fallen off the bus.")

    for findings in (lost, gsp):
        assert findings[0].severity is Severity.CRITICAL
        assert findings[1].severity is Severity.INFO
    assert alone[0].action is Action.REBOOT


def test_nonfatal_nvlink5_and_sxids_are_no_alarm() -> None:
    calm = findings_of(
        xid(145, "").replace("pid=7, name=python3, ", "RLW_RXPIPE Nonfatal XC0 i0 Link 3 (0x0 0x8)")
    )
    fatal = findings_of(
        xid(145, "").replace("pid=7, name=python3, ", "RLW_RXPIPE Fatal XC0 i0 Link 3 (0x0 0x8)")
    )
    switch = findings_of("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 99999, Non-fatal, Link 1 x")
    unknown = findings_of("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 99999, Fatal, Link 1 x")

    assert verdicts(calm) == {145: (Severity.INFO, Action.NONE)}
    assert verdicts(fatal) == {145: (Severity.CRITICAL, Action.RESET_GPU)}
    assert verdicts(switch) == {99_999: (Severity.WARNING, Action.WATCH)}
    assert verdicts(unknown) == {99_999: (Severity.CRITICAL, Action.CONTACT_SUPPORT)}


def nvlink5(xid_code: int, words: str, *registers: int) -> str:
    text = " ".join(f"0x{register:08x}" for register in registers)
    return f"NVRM: Xid (PCI:{GPU}): {xid_code}, {words} XC0 i0 Link 00 ({text})"


NOTHING = (Severity.INFO, Action.NONE)
RESET = (Severity.CRITICAL, Action.RESET_GPU)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        # reason 38: NVIDIA ignores it, 37: the peer went down, 63: no reason that is listed
        (nvlink5(149, "NETIR_LINK_EVT Fatal", 0x026001C6, 0), NOTHING),
        (nvlink5(149, "NETIR_LINK_DOWN Fatal", 0x02600011, 0), NOTHING),
        (nvlink5(149, "NETIR_LINK_EVT Fatal", 0x025001C6, 0), RESET),
        (nvlink5(149, "NETIR_LINK_EVT Fatal", 0x03F001C6, 0), RESET),
        (nvlink5(149, "NETIR_BER_EVENT Nonfatal", 0x00082226, 1), (Severity.INFO, Action.WATCH)),
        (nvlink5(149, "NETIR Fatal", 0x000FE406, 0), RESET),
        (nvlink5(145, "RLW_REMAP Nonfatal", 0x82, 1), (Severity.WARNING, Action.RESTART_APP)),
        (nvlink5(145, "RLW_RXPIPE Nonfatal", 0x0409A0C2, 1), NOTHING),
        (nvlink5(145, "RLW_RXPIPE Fatal", 0x0409A4C2, 1), RESET),  # raised, before R575
        (nvlink5(145, "RLW_RXPIPE Nonfatal", 0x04090086, 1), RESET),  # raised, since R575
        # two bits of the status at once: the worse of the two rows
        (nvlink5(146, "TLW_CTRL Fatal", 0x123, 5), RESET),
        # a status that the table does not list: by the driver's word
        (nvlink5(145, "RLW_CTRL Nonfatal", 0x62, 0x40), (Severity.INFO, Action.WATCH)),
        (nvlink5(145, "RLW_CTRL Fatal", 0x62, 0x40), RESET),
        # without its registers the XID itself decides
        (f"NVRM: Xid (PCI:{GPU}): 149, NETIR_LINK_EVT", RESET),
    ],
)
def test_nvlink5_error_is_judged_by_what_its_registers_say(
    text: str, verdict: tuple[Severity, Action]
) -> None:
    (finding,) = findings_of(text)

    assert (finding.severity, finding.action) == verdict


def test_nvlink5_links_that_go_down_for_several_reasons_are_as_bad_as_the_worst() -> None:
    (finding,) = findings_of(
        nvlink5(149, "NETIR_LINK_EVT Fatal", 0x026001C6, 0),
        nvlink5(149, "NETIR_LINK_EVT Fatal", 0x002001C6, 0),
    )

    assert (finding.severity, finding.action) == RESET
    assert "INVESTIGATE_LINK_SI" in finding.reason


def test_nvlink5_error_without_an_action_of_its_own_follows_the_drivers_verdict() -> None:
    error = nvlink5(145, "RLW_SRC_TRACK Nonfatal", 0xE2, 4)
    verdict = xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")

    alone, beside = findings_of(error), findings_of(error, verdict)

    assert verdicts(alone)[145] == (Severity.WARNING, Action.RESTART_APP)
    assert verdicts(beside)[145] == RESET


def test_nvlink5_table_has_the_rows_of_nvidias() -> None:
    path = ROOT / "detectors" / "data" / "kernel_log.csv"
    with path.open(newline="") as file:
        rows = [cells for cells in csv.reader(file) if cells[0] == "nvlink5"]

    counted: dict[str, list[int]] = {}
    for _table, code, _name, _severity, _action, _hardware, source, *_rest in rows:
        if not code.endswith("promoted"):
            of_xid = counted.setdefault(code.split()[0], [0, 0, 0])
            buckets = ("IGNORE", "RESET_GPU", "XID_154_EVAL")
            of_xid[buckets.index(source.partition(": ")[2].partition(",")[0])] += 1
    assert counted == {
        "144": [4, 2, 0],
        "145": [16, 9, 8],
        "146": [15, 5, 0],
        "147": [2, 0, 0],
        "148": [1, 0, 0],
        "149": [7, 24, 0],
        "150": [0, 2, 0],
    }


def test_nvlink_bits_that_can_be_ignored_are() -> None:
    ignorable = findings_of(xid(74, "NVLink: error on link 6(0x40800001, 0x0, 0x0)"))
    both = findings_of(
        xid(74, "NVLink: error on link 6(0x40800001, 0x0, 0x0)"),
        xid(74, "NVLink: error on link 6(0x10000, 0x0, 0x0)"),
    )

    assert verdicts(ignorable) == {74: (Severity.INFO, Action.NONE)}
    assert verdicts(both) == {74: (Severity.CRITICAL, Action.RESET_GPU)}


WARP = "Graphics SM Warp Exception on (GPC {}, TPC {}, SM 0): x"


def test_exception_that_keeps_to_one_tpc_blames_the_silicon() -> None:
    once = findings_of(xid(13, WARP.format(7, 3)))
    twice = findings_of((0.0, xid(13, WARP.format(7, 3))), (600.0, xid(13, WARP.format(7, 3))))

    assert verdicts(once) == {13: (Severity.WARNING, Action.RESTART_APP)}
    assert verdicts(twice) == {13: (Severity.WARNING, Action.CONTACT_SUPPORT)}
    assert [finding.blames_hardware for finding in once + twice] == [False, True]


def test_exceptions_all_over_the_gpu_or_on_two_gpus_blame_the_program() -> None:
    times = (0.0, 600.0)
    all_over = findings_of(
        *((at, xid(13, WARP.format(1, tpc))) for at in times for tpc in range(9))
    )
    two_gpus = findings_of(
        *((at, xid(13, WARP.format(1, 1), gpu)) for at in times for gpu in (GPU, "0000:9c:00"))
    )

    for finding in all_over + two_gpus:
        assert (finding.action, finding.blames_hardware) == (Action.RESTART_APP, False)
    assert len(all_over) == 1


def test_page_faults_again_and_again_on_one_gpu_blame_it_within_a_day_only() -> None:
    within = findings_of((0.0, xid(31)), (600.0, xid(31)))
    apart = findings_of((0.0, xid(31)), (DAY_S + 1, xid(31)))

    assert within[0].action is Action.CONTACT_SUPPORT
    assert apart[0].action is Action.RESTART_APP


def test_fatal_xid_five_times_a_day_asks_for_another_gpu() -> None:
    four = findings_of(*((number * 3_600.0, xid(119)) for number in range(4)))
    five = findings_of(*((number * 3_600.0, xid(119)) for number in range(5)))
    one_burst = findings_of(*((number * 10.0, xid(119)) for number in range(5)))

    assert four[0].action is one_burst[0].action is Action.RESET_GPU
    assert (five[0].action, five[0].blames_hardware) == (Action.REPLACE, True)


def test_link_that_came_up_again_is_no_warning() -> None:
    down = findings_of("mlx5_core 0000:3b:00.0 eth1: Link down")
    up = findings_of(
        (0.0, "mlx5_core 0000:3b:00.0 eth1: Link down"),
        (9_000.0, "mlx5_core 0000:3b:00.0 eth1: Link up"),
    )
    other = findings_of("eth1: Link is Down", "eth2: Link is Up")

    assert down[0].severity is Severity.WARNING
    assert {finding.severity for finding in up} == {Severity.INFO}
    assert other[0].severity is Severity.WARNING


def test_ten_corrected_memory_errors_within_a_minute_are_a_warning_and_nine_are_not() -> None:
    nine = findings_of((1.0, "EDAC MC0: 9 CE memory read error on DIMM_A1 (x)"))
    ten = findings_of(
        (1.0, "EDAC MC0: 9 CE memory read error on DIMM_A1 (x)"),
        (9.0, "EDAC MC0: 1 CE memory read error on DIMM_A1 (x)"),
    )
    two_modules = findings_of(
        (1.0, "EDAC MC0: 9 CE memory read error on DIMM_A1 (x)"),
        (9.0, "EDAC MC0: 9 CE memory read error on DIMM_B1 (x)"),
    )

    assert nine[0].severity is Severity.INFO
    assert (ten[0].severity, ten[0].action) == (Severity.WARNING, Action.CONTACT_SUPPORT)
    assert two_modules[0].severity is Severity.INFO


def test_a_lockup_is_a_warning_until_it_lasts_or_comes_three_times_a_day() -> None:
    def stuck(seconds: int, at_s: float) -> tuple[float, str]:
        return at_s, f"watchdog: BUG: soft lockup - CPU#3 stuck for {seconds}s! [python:1234]"

    once, twice = findings_of(stuck(22, 1.0)), findings_of(stuck(22, 1.0), stuck(59, 80_000.0))
    lasting = findings_of(stuck(22, 1.0), stuck(60, 39.0))
    thrice = findings_of(*(stuck(22, at_s) for at_s in (1.0, 9_000.0, 80_000.0)))
    monthly = findings_of(*(stuck(22, month * 30 * DAY_S) for month in range(5)))

    assert once[0].severity is twice[0].severity is monthly[0].severity is Severity.WARNING
    assert (lasting[0].severity, lasting[0].action) == (Severity.CRITICAL, Action.REBOOT)
    assert (thrice[0].severity, thrice[0].action) == (Severity.CRITICAL, Action.REBOOT)


def test_corrected_memory_errors_become_a_warning_at_100_a_day() -> None:
    each = [
        (hour * 3_600.0, "EDAC MC0: 9 CE memory read error on DIMM_A1 (x)") for hour in range(11)
    ]
    few = findings_of(*each)
    many = findings_of(*each, (40_000.0, "EDAC MC0: 1 CE memory read error on DIMM_A1 (x)"))
    slow = findings_of(
        *(
            (number * DAY_S, "EDAC MC0: 9 CE memory read error on DIMM_A1 (x)")
            for number in range(14)
        )
    )

    assert few[0].severity is slow[0].severity is Severity.INFO
    assert (many[0].severity, many[0].action) == (Severity.WARNING, Action.CONTACT_SUPPORT)


def test_card_that_hangs_in_three_bursts_a_day_is_failing_and_at_once_is_only_watched() -> None:
    hang = "mlx5_core 0000:ab:00.0 eth2: TX timeout detected"

    once = findings_of(*[hang] * 40)
    thrice = findings_of((0.0, hang), (3_600.0, hang), (7_200.0, hang))
    slowly = findings_of((0.0, hang), (90_000.0, hang), (180_000.0, hang))

    assert (once[0].severity, once[0].action) == (Severity.WARNING, Action.WATCH)
    assert (thrice[0].severity, thrice[0].action) == (Severity.CRITICAL, Action.DRAIN)
    assert slowly[0].severity is Severity.WARNING


def test_corrected_pcie_errors_become_a_warning_above_60_a_minute() -> None:
    text = (
        "nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    )

    few = findings_of(*((second * 2.0, text) for second in range(60)))
    many = findings_of(*((second / 2, text) for second in range(240)))

    assert few[0].severity is Severity.INFO
    assert (many[0].severity, many[0].action) == (Severity.WARNING, Action.WATCH)


def test_logs_without_times_are_judged_by_order() -> None:
    state = KernelLogState()
    for text in (xid(163), xid(162), xid(48), xid(63)):
        state.feed(Record(text))

    found = verdicts(list(judge(state.groups(), POLICY)))

    assert found[163] == (Severity.INFO, Action.NONE)
    assert found[48] == (Severity.CRITICAL, Action.DRAIN)


def test_judge_xids_leaves_the_rest_of_the_log_out() -> None:
    state = KernelLogState()
    for text in (xid(79), "Kernel panic - not syncing: x"):
        state.feed(Record(text))

    assert [finding.code for finding in judge_xids(state.groups(), POLICY)] == [79]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([13, 31, 45, 48, 63, 64, 74, 79, 94, 95, 119, 145, 154, 162, 163, 171]),
            st.sampled_from(
                ["", "GPU recovery action changed from 0x0 (None) to 0x2 (R)", WARP.format(1, 2)]
            ),
            st.sampled_from([GPU, "0000:9c:00"]),
            st.one_of(st.none(), st.floats(0, 1e6)),
        ),
        max_size=30,
    )
)
def test_every_event_is_in_exactly_one_finding(
    messages: list[tuple[int, str, str, float | None]],
) -> None:
    state = KernelLogState()
    for code, details, gpu, at_s in messages:
        state.feed(Record(xid(code, details, gpu), at_s=at_s))

    findings = judge(state.groups(), POLICY)

    assert sum(finding.count for finding in findings) == len(messages)
    keys = [(finding.kind, finding.code, finding.device) for finding in findings]
    assert len(keys) == len(set(keys))


# --- NVLink


RESET, SUPPORT = (Severity.CRITICAL, Action.RESET_GPU), (Severity.CRITICAL, Action.CONTACT_SUPPORT)
MILD, GOES_ON = (Severity.WARNING, Action.WATCH), (Severity.INFO, Action.WATCH)
NOTHING = (Severity.INFO, Action.NONE)
X74 = "NVRM: Xid (PCI:0000:19:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link {}({})"


def registers(**bits: int) -> str:
    """Return the seven registers of an XID 74; ``r1=20``: bit 20 of the first."""
    values = [0] * 7
    for name, bit in bits.items():
        values[int(name[1]) - 1] |= 1 << bit
    return ", ".join(f"{value:#x}" for value in values)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        ({"r1": 0}, NOTHING),
        ({"r1": 23}, NOTHING),
        ({"r1": 30}, NOTHING),
        ({"r5": 20}, GOES_ON),
        ({"r5": 23}, GOES_ON),
        ({"r5": 26}, GOES_ON),
        ({"r5": 29}, GOES_ON),
        ({"r1": 0, "r5": 29}, GOES_ON),
        ({"r5": 18}, RESET),
        ({"r5": 28}, RESET),
        ({"r1": 4}, RESET),
        ({"r3": 6}, RESET),
        ({"r1": 8}, RESET),
        ({"r1": 21}, RESET),
        ({"r1": 20}, RESET),
        ({"r4": 18}, RESET),
        ({"r1": 2}, RESET),  # no bit of the workflow
        ({"r2": 20}, RESET),  # a register that is not valid
        ({"r5": 20, "r1": 4}, RESET),
        ({}, RESET),
    ],
    ids=str,
)
def test_the_registers_of_an_nvlink_error_decide(
    bits: dict[str, int], expected: tuple[Severity, Action]
) -> None:
    assert verdicts(findings_of(X74.format(6, registers(**bits)))) == {74: expected}


def test_ecc_errors_of_one_link_are_hardware_from_the_third_on() -> None:
    line = X74.format(6, registers(r1=4))
    elsewhere = X74.format(7, registers(r1=4))

    assert verdicts(findings_of(line, line, elsewhere)) == {74: RESET}
    assert verdicts(findings_of(line, line, line)) == {74: SUPPORT}


def test_a_secondary_nvlink_error_beside_another_xid_is_left_to_that_finding() -> None:
    line = X74.format(6, registers(r4=16))
    other = "NVRM: Xid (PCI:0000:19:00): 48, pid=1, name=x, DBE (double bit error)"

    found = verdicts(findings_of(other, line))

    assert found[74] == MILD
    assert found[48][0] is Severity.CRITICAL


def test_the_operator_reads_which_connection_to_check() -> None:
    (found,) = findings_of(X74.format(6, registers(r1=8)))

    assert found.sub_codes == ("link 6 connection",)
    assert "check the link's connections" in found.reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("145, RLW_REMAP Nonfatal XC0 i0 Link 02", MILD),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03", MILD),
        ("144, SAW_MVB Nonfatal XC0 i0 Link -1", MILD),
        ("146, TLW_RX nonfatal Link 4", MILD),
        ("149, NETIR_LINK_EVT Non-fatal XC0 i0 Link 03", MILD),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 03", RESET),
        ("145, RLW_REMAP Fatal", RESET),
        ("150, MSE_WATCHDOG", RESET),
        ("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 05 (0x04084507 0x00000004 0x0 0x0 0x0 0x0", (Severity.WARNING, Action.RESTART_APP)),
        ("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 05 (0x04084507 0x00000004 0x0 0x0 0x0 0x0)", (Severity.WARNING, Action.RESTART_APP)),
    ],
)  # fmt: skip
def test_what_the_driver_calls_nonfatal_is_at_most_a_warning_with_or_without_registers(
    text: str, expected: tuple[Severity, Action]
) -> None:
    code = int(text.partition(",")[0])

    assert verdicts(findings_of(f"NVRM: Xid (PCI:0018:01:00): {text}")) == {code: expected}


def test_a_verdict_of_the_driver_still_overrides_a_nonfatal_line() -> None:
    found = findings_of(
        "NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 02",
        "NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    )

    assert verdicts(found)[154] == RESET
