"""What the GPU report compares and judges, on NVML's stand-in: a true difference is named, and nothing else is."""

import ctypes
import io
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pynvml
import pytest

from agent.nvml.children import make_page
from bench.gpu import fault_evidence, nvidia_smi, own_queries
from bench.gpu.agent_beside import agent_beside, has_mapped
from bench.gpu.areas import faults, nvml
from bench.gpu.fault_evidence import Ears, Evidence, accusations
from bench.gpu.load import Load, LoadError, Workers, peak_bf16_per_s
from bench.gpu.nvml_agent import AgentWithRanks, judge_memory, try_ranks
from bench.gpu.nvml_load import try_gemm, try_load, try_processes
from bench.gpu.nvml_memory import ask_memory
from bench.gpu.rows import NotTriedError, Outcome, Row, Telling, Trial
from bench.gpu.watch import GROUPS, TimedPage, watching
from detectors.failed.error_classes import read_end
from detectors.failed.said_error import FailureCause
from detectors.finding import Blame
from tests.support.eventually import eventually
from tests.support.nvml_stub.fake import FakeNvml
from tests.support.nvml_stub.node import StubNode, build

pytestmark = pytest.mark.process

# the stand-in's H100, in the form of nvidia-smi 580 (nvsmi_device_v13.dtd)
XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
<driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version>
<gpu id="00000000:1B:00.0">
<product_name>NVIDIA H100 80GB HBM3</product_name><persistence_mode>Enabled</persistence_mode>
<serial>1653924000000</serial><uuid>GPU-00000000-0000-0000-0000-000000000000</uuid><minor_number>0</minor_number>
<vbios_version>96.00.A5.00.01</vbios_version><board_part_number>692-2G520-0200-000</board_part_number>
<inforom_version><img_version>G520.0200.00.05</img_version></inforom_version>
<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
<gpu_recovery_action>None</gpu_recovery_action>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
</pci_gpu_link_info><replay_counter>0</replay_counter></pci>
<fan_speed>N/A</fan_speed><performance_state>P0</performance_state>
<clocks_event_reasons><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
<clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle></clocks_event_reasons>
<clocks_event_reasons_counters><clocks_event_reasons_counters_sw_power_cap>0 us</clocks_event_reasons_counters_sw_power_cap>
</clocks_event_reasons_counters>
<fb_memory_usage><total>81920 MiB</total><reserved>1024 MiB</reserved><used>61440 MiB</used></fb_memory_usage>
<utilization><gpu_util>98 %</gpu_util><memory_util>61 %</memory_util></utilization>
<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
<ecc_errors><volatile><sram_correctable>0</sram_correctable>
<sram_uncorrectable_parity>0</sram_uncorrectable_parity><sram_uncorrectable_secded>0</sram_uncorrectable_secded>
</volatile></ecc_errors>
<retired_pages>N/A</retired_pages>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_pending>No</remapped_row_pending>
<row_remapper_histogram><row_remapper_histogram_max>2560 bank(s)</row_remapper_histogram_max></row_remapper_histogram>
</remapped_rows>
<temperature><gpu_temp>45 C</gpu_temp><gpu_temp_tlimit>42 C</gpu_temp_tlimit><memory_temp>58 C</memory_temp></temperature>
<gpu_power_readings><instant_power_draw>310.50 W</instant_power_draw>
<current_power_limit>700.00 W</current_power_limit></gpu_power_readings>
<clocks><sm_clock>1980 MHz</sm_clock><mem_clock>2619 MHz</mem_clock></clocks>
<applications_clocks><graphics_clock>Requested functionality has been deprecated</graphics_clock></applications_clocks>
</gpu></nvidia_smi_log>"""
WORKER = """
import sys, json, time, select
def say(message): print(json.dumps(message), flush=True)
say({"is_ready": True})
while line := sys.stdin.readline():
    name, _space, number = line.strip().partition(" ")
    if name == "stop":
        continue
    if number == "13":
        say({"error": "RuntimeError: out of luck"})
        continue
    say({"began": name, "work": 1e12, "sms": 132, "capability": [9, 0]})
    marks, count = [], 0
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        count += 1
        marks.append((time.monotonic(), count))
    sys.stdin.readline()
    say({"stopped": name, "marks": marks})
"""
XID_31 = "NVRM: Xid (PCI:0000:1b:00): 31, pid=77, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f04_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
XID_79 = (
    "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)


@pytest.fixture
def node() -> Iterator[StubNode]:
    before = pynvml.nvmlLib
    node = StubNode(1)
    use(FakeNvml(node))
    yield node
    use(before)


def use(library: object) -> None:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()


def ask() -> nvidia_smi.SmiAnswer:
    return nvidia_smi.read_answer(XML)


def changed(old: str, new: str) -> nvidia_smi.SmiAnswer:
    assert old in XML
    return nvidia_smi.read_answer(XML.replace(old, new))


# ---- nvidia-smi


def test_gpu_that_is_as_nvidia_smi_says_passes(node: StubNode) -> None:
    with watching(pynvml, "13.0") as watched:
        for attempt in (nvml.try_smi, nvml.try_identity, nvml.try_absent):
            trial = Trial()
            attempt(trial, watched, ask)
            assert trial.failures == [], attempt.__name__

        trial = Trial()
        nvml.try_smi(trial, watched, ask)
        assert trial.figures["compared"] >= 25


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("310.50 W", "150.00 W", "power_watts 310.5, nvidia-smi 150"),
        ("<gpu_temp>45 C", "<gpu_temp>41 C", "temperature_celsius 45"),
        ("2560 bank(s)", "2559 bank(s)", "remap_banks{max} 2560"),
        ("<used>61440 MiB", "<used>61000 MiB", "memory_used_bytes"),
        ("<remapped_row_pending>No", "<remapped_row_pending>Yes", "remapped_rows_pending 0"),
        ("700.00 W", "650.00 W", "power_limit_watts 700"),
        ("P0<", "P8<", "performance_state_id 0, nvidia-smi 8"),
        ("parity>0<", "parity>2<", "ecc_place_errors_total{uncorrected,volatile,sram} 0"),
    ],
)
def test_value_that_differs_is_named(node: StubNode, old: str, new: str, named: str) -> None:
    trial = Trial()

    with watching(pynvml, "13.0") as watched:
        nvml.try_smi(trial, watched, lambda: changed(old, new))

    assert len(trial.failures) == 1
    assert named in trial.failures[0]


def test_moving_value_may_lie_between_two_answers(node: StubNode) -> None:
    with watching(pynvml, "13.0") as watched:
        values = watched.values(*GROUPS)

    cool, hot = (
        changed("<gpu_temp>45 C", "<gpu_temp>40 C"),
        changed("<gpu_temp>45 C", "<gpu_temp>60 C"),
    )
    assert not nvidia_smi.compare(values, cool, hot).differing
    assert nvidia_smi.compare(values, hot, hot).differing


def test_value_that_nvidia_smi_shows_as_absent_is_named(node: StubNode) -> None:
    trial = Trial()

    with watching(pynvml, "13.0") as watched:
        nvml.try_absent(trial, watched, lambda: changed("<memory_temp>58 C", "<memory_temp>N/A"))

    assert trial.failures == [
        "N/A for nvidia-smi, a series of the agent: memory_temperature_celsius 58"
    ]


def test_value_that_only_nvidia_smi_has_is_named(node: StubNode) -> None:
    node.remove(0, "nvmlDeviceGetMarginTemperature")
    trial = Trial()

    with watching(pynvml, "13.0") as watched:
        nvml.try_smi(trial, watched, ask)

    assert trial.failures == ["nvidia-smi shows, the agent does not: temperature_margin_celsius"]


def test_other_identity_is_named(node: StubNode) -> None:
    node.set(0, "nvmlDeviceGetSerial", "7")
    trial = Trial()

    with watching(pynvml, "13.0") as watched:
        nvml.try_identity(trial, watched, ask)

    assert trial.failures == ["serial is '7', nvidia-smi's '1653924000000'"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("81559 MiB", 81559 * 2**20), ("1980 MHz", 1.98e9), ("-2 C", -2.0), ("16x", 16.0)),
        *(("98 %", 0.98), ("P8", 8.0), ("Enabled", 1.0), ("No", 0.0), ("Completed", 3.0)),
        *(("25483012608 us", 25483.012608), ("2560 bank(s)", 2560.0), ("N/A", None), ("", None)),
        *(("Requested functionality has been deprecated", None), ("5 parsec", None)),
    ],
)
def test_text_of_nvidia_smi_becomes_a_number_or_nothing(text: str, value: float | None) -> None:
    assert nvidia_smi.parse(text) == (None if value is None else pytest.approx(value))


def test_everything_below_an_absent_part_is_absent() -> None:
    row = next(row for row in nvidia_smi.ROWS if row.key == "retired_pages_total{double_bit}")

    assert ask().lacks(row)
    assert ask().value(row) is None


# ---- pynvml's own functions


def test_values_asked_a_second_way_are_equal(node: StubNode) -> None:
    trial = Trial()

    with watching(pynvml, "13.0") as watched:
        nvml.try_own(trial, watched)

    assert trial.failures == []
    assert trial.notes == [], "each series can be asked a second way"
    assert trial.figures["compared"] > 100


def test_difference_between_field_and_function_is_named(node: StubNode) -> None:
    node.set(0, "nvmlDeviceGetTotalEnergyConsumption", 2 * 10**9)
    trial = Trial()

    with watching(pynvml, "13.0") as watched:
        nvml.try_own(trial, watched)

    assert trial.failures == ["differ: energy_joules_total 1e+06, pynvml 2e+06 and 2e+06"]


def test_counter_that_the_driver_brings_up_to_date_later_for_functions_is_equal() -> None:
    """0.13 s apart on an H200."""
    name = "clocks_limited_seconds_total{sw_power_cap}"

    for seconds, is_equal in ((10.13, True), (9.87, True), (10.6, False)):
        compared, differing = own_queries.compare(
            {name: 10.0}, [(name, seconds)], [(name, seconds)]
        )
        assert compared == {name}
        assert (not differing) is is_equal


def test_missing_function_is_not_compared(node: StubNode) -> None:
    use(FakeNvml(node, is_old=True))

    with watching(pynvml, "13.0") as watched:
        values = watched.values("fast")
        answers = own_queries.answer(pynvml, watched.gpu.handle, own_queries.queries(values))

    assert dict(answers)["temperature_celsius"] == 45


# ---- load


def test_load_is_measured_between_two_moments(node: StubNode) -> None:
    workers = Workers([sys.executable, "-c", WORKER])
    trial = Trial()

    with watching(pynvml, "13.0") as watched:
        try_gemm(trial, watched, workers)
        workers.end()

    assert 0 < trial.figures["achieved_tflops"] <= 50
    assert trial.figures["peak_tflops_at_clock"] == pytest.approx(1071, rel=0.01)
    assert trial.failures[0].startswith("pipe_active_ratio{tensor} is 0.635, expected 0.0")


def test_load_that_failed_says_why_and_another_one_follows() -> None:
    workers = Workers([sys.executable, "-c", WORKER])
    first = workers.get()

    with pytest.raises(LoadError, match="out of luck"), first.running("gemm", 13):
        pass
    first.kill()
    with workers.get().running("gemm", 1):
        assert workers.get().pid != first.pid
    workers.end()


def test_rate_without_enough_batches_is_an_error() -> None:
    load = Load({"work": 2.0, "sms": 132, "capability": [9, 0]})
    load.marks = [(1.0, 1), (2.0, 3), (3.0, 5), (9.0, 6)]

    assert load.rate(0.5, 3.5) == 4.0
    with pytest.raises(LoadError):
        load.rate(4.0, 10.0)


def test_peak_of_an_unknown_chip_is_not_guessed() -> None:
    known = Load({"work": 1.0, "sms": 132, "capability": [9, 0]})
    other = Load({"work": 1.0, "sms": 132, "capability": [42, 0]})

    assert peak_bf16_per_s(known, 1.83e9) == pytest.approx(989.4e12, rel=1e-3)
    with pytest.raises(NotTriedError, match=r"42\.0"):
        peak_bf16_per_s(other, 1e9)


def test_driver_that_hides_pids_leaves_the_row_untried(node: StubNode) -> None:
    node.set(0, "nvmlDeviceGetComputeRunningProcesses", 0, 4 << 30)
    workers = Workers([sys.executable, "-c", WORKER])

    with (
        watching(pynvml, "13.0") as watched,
        pytest.raises(NotTriedError, match=r"lists pids \[0\]"),
    ):
        try_processes(Trial(), watched, workers)
    workers.end()


def test_slowest_call_is_named() -> None:
    descriptor = make_page()
    times_s = iter([10.0, 10.25, 20.0, 20.5, 30.0, 30.125])
    page = TimedPage(descriptor, lambda: next(times_s))
    os.close(descriptor)
    for name in ("quick", "slow", "quick"):
        page.begin(name, 0, 0.0)
        page.end()

    assert page.slowest() == ("slow", 0.5)


# ---- cards and drivers that differ


class Kind(NamedTuple):
    """A card, driver or user that differs from an H100 of R580 that root reads."""

    lacks: tuple[str, ...]  # functions and fields, by their beginnings
    answers: Mapping[str, str]
    smi: tuple[tuple[str, str], ...]


KINDS = {
    "mig": Kind(
        ("nvmlDeviceGetUtilizationRates", "gpm/", "nvmlGpmQueryDeviceSupport"),
        {"0/nvmlDeviceGetMigMode": "1 1"},
        (
            *(("98 %", "N/A"), ("61 %", "N/A")),
            *(("<current_mig>Disabled", "<current_mig>Enabled"),),
            *(("<pending_mig>Disabled", "<pending_mig>Enabled"),),
        ),
    ),
    "virtual": Kind(  # what a guest with a share of a card does not get
        (
            *("nvmlDeviceGetUtilizationRates", "gpm/", "nvmlGpmQueryDeviceSupport", "field/"),
            *("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit"),
            *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetPersistenceMode"),
            *("nvmlDeviceGetMarginTemperature", "nvmlDeviceGetTemperature", "nvmlDeviceGetClock"),
            *("nvmlDeviceGetMaxClock", "nvmlDeviceGetApplications", "nvmlDeviceGetSerial"),
            *("nvmlDeviceGetMemoryErrorCounter", "nvmlDeviceGetRowRemapper", "nvmlDeviceGetRepair"),
            *("nvmlDeviceGetCurrPcie", "nvmlDeviceGetMaxPcie", "nvmlDeviceGetPcie"),
            *("nvmlDeviceGetNvLink", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetGpuFabric"),
            *("nvmlDeviceGetInforom", "nvmlDeviceGetBoardPart", "nvmlDeviceGetVbios"),
        ),
        {"nvmlEventSetCreate": "E3"},
        (
            *(("98 %", "N/A"), ("61 %", "N/A"), ("310.50 W", "N/A"), ("700.00 W", "N/A")),
            *(("45 C", "N/A"), ("42 C", "N/A"), ("58 C", "N/A"), ("1980 MHz", "N/A")),
            *(("2619 MHz", "N/A"), ("2560 bank(s)", "N/A"), ("1653924000000", "N/A")),
            *(("<persistence_mode>Enabled", "<persistence_mode>N/A"),),
            *(("<remapped_row_corr>0", "<remapped_row_corr>N/A"),),
            *(("<remapped_row_pending>No", "<remapped_row_pending>N/A"),),
            *(
                ("<current_ecc>Enabled", "<current_ecc>N/A"),
                ("<pending_ecc>Enabled", "<pending_ecc>N/A"),
            ),
            *(("<sram_correctable>0", "<sram_correctable>N/A"),),
            *(
                ("parity>0", "parity>N/A"),
                ("secded>0", "secded>N/A"),
                ("sw_power_cap>0 us", "sw_power_cap>N/A"),
            ),
            *(
                ("<max_link_gen>5", "<max_link_gen>N/A"),
                ("<current_link_gen>5", "<current_link_gen>N/A"),
            ),
            *(("width>16x</max", "width>N/A</max"), ("width>16x</current", "width>N/A</current")),
            *(
                ("<replay_counter>0", "<replay_counter>N/A"),
                ("<gpu_recovery_action>None", "<gpu_recovery_action>N/A"),
            ),
            *(("692-2G520-0200-000", "N/A"), ("G520.0200.00.05", "N/A"), ("96.00.A5.00.01", "N/A")),
        ),
    ),
    "persistence off": Kind(
        (),
        {"0/nvmlDeviceGetPersistenceMode": "0"},
        (("<persistence_mode>Enabled", "<persistence_mode>Disabled"),),
    ),
    "ECC off": Kind(
        (
            *(f"field/{number}/" for number in range(3, 29)),
            *("nvmlDeviceGetMemoryErrorCounter", "nvmlDeviceGetTotalEcc", "nvmlDeviceGetRepair"),
        ),
        {"0/field/1/0": "0", "0/field/2/0": "0"},
        (
            ("<current_ecc>Enabled", "<current_ecc>Disabled"),
            ("<pending_ecc>Enabled", "<pending_ecc>Disabled"),
            ("<sram_correctable>0", "<sram_correctable>N/A"),
            *(("parity>0", "parity>N/A"), ("secded>0", "secded>N/A")),
        ),
    ),
    "R550": Kind(
        ("field/269", "field/270", "field/271", "field/230/", "nvmlDeviceGetRepair"),
        {"nvmlSystemGetDriverVersion": "550.163.01", "nvmlSystemGetCudaDriverVersion": "12040"},
        (
            *(("580.95.05", "550.163.01"), (">13.0<", ">12.4<")),
            ("<gpu_recovery_action>None</gpu_recovery_action>", ""),
        ),
    ),
    "not root": Kind((), {"0/nvmlDeviceGetComputeRunningProcesses": "E4"}, ()),
}


def become(node: StubNode, kind: Kind) -> nvidia_smi.SmiAnswer:
    """Have the stand-in be of a kind; return what nvidia-smi says of it."""
    for key in [one for one in node.answers if one.partition("/")[2].startswith(kind.lacks or "-")]:
        del node.answers[key]
    node.answers |= kind.answers
    text = XML.replace(">Active<", ">Not Active<")  # as the stand-in's own reasons
    for old, new in kind.smi:
        assert old in text, old
        text = text.replace(old, new)
    return nvidia_smi.read_answer(text)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_a_card_driver_or_user_does_not_allow_are_not_tried(
    node: StubNode, kind: str
) -> None:
    answer = become(node, KINDS[kind])
    told = io.StringIO()
    power = "0/field/186/0"

    def ask() -> nvidia_smi.SmiAnswer:
        if power in node.answers:  # takes a milliwatt more each time
            node.answers[power] = str(int(node.answers[power]) + 1)
        return answer

    nvml.read_gpu(
        Telling("nvml", nvml.CLAIMS, told),
        pynvml,
        Workers([sys.executable, "-c", WORKER]),
        ask,
        lambda _nvml: answer.cuda,
    )

    rows = [Row.from_json(line) for line in told.getvalue().splitlines()]
    shown = {"nvml.gpm_idle", "nvml.gpm_gemm", "nvml.gpm_copy"}  # the stand-in works all the time
    failed = {row.id: row.why for row in rows if row.outcome is Outcome.FAILED}
    assert {name: why for name, why in failed.items() if name not in shown} == {}
    if "gpm/" in KINDS[kind].lacks:
        assert failed == {}
        assert {row.outcome for row in rows if row.id in shown} == {Outcome.NOT_TRIED}
    assert len(rows) == len(nvml.CLAIMS) - 3, "all but those of rankmend's own programs"


def test_load_on_a_card_without_utilization_or_power_is_compared_as_far_as_it_goes(
    node: StubNode,
) -> None:
    answer = become(node, KINDS["virtual"])
    workers = Workers([sys.executable, "-c", WORKER])
    trial = Trial()

    with watching(pynvml, "13.0") as watched:
        try_load(trial, watched, workers, lambda: answer)
    workers.end()

    assert trial.failures == []
    assert trial.notes == ["this card gives no utilization_ratio and no power_watts"]


def test_user_without_the_right_leaves_the_row_untried(node: StubNode) -> None:
    with pytest.raises(NotTriedError, match="no such call"), nvml.lacking_is_told(pynvml):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(pynvml.NVMLError), nvml.lacking_is_told(pynvml):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)


# ---- faults


@pytest.mark.parametrize(
    ("message", "cause", "blame"),
    [
        ("an illegal memory access was encountered", FailureCause.KERNEL_FAULT, Blame.RANK),
        ("misaligned address", FailureCause.KERNEL_FAULT, Blame.RANK),
        ("unspecified launch failure", FailureCause.KERNEL_FAULT, Blame.RANK),
        ("device-side assert triggered", FailureCause.PROGRAM, Blame.PROGRAM),
        ("uncorrectable ECC error encountered", FailureCause.DEVICE, Blame.RANK),
    ],
)
def test_words_of_a_rank_decide_its_class(message: str, cause: FailureCause, blame: Blame) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "fault_worker.py", line 40, in main',
        "    torch.cuda.synchronize()",
        f"torch.AcceleratorError: CUDA error: {message}",
        "CUDA kernel errors might be asynchronously reported at some other API call.",
    ]

    finding = faults.judge_rank(1, lines)

    said = read_end(None, lines).error
    assert said is not None
    assert said.cause is cause
    assert finding is not None
    assert finding.blame is blame


class _Log:
    """Records one a read, as /dev/kmsg gives them."""

    def __init__(self, texts: list[str]) -> None:
        self.texts, self.number = texts, 0

    def read(self) -> bytes | None:
        if self.number >= len(self.texts):
            return None
        self.number += 1
        text = self.texts[self.number - 1]
        return f"3,{self.number},{self.number}000,-;{text}\n".encode()

    def wait(self, timeout_s: float) -> bool:
        return False

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


def heard(*texts: str) -> Evidence:
    from agent.sources.kmsg import KmsgReader

    ears = Ears(None, Path("/nowhere/kmsg"))
    log = _Log(["usb 1-1: new device"])
    ears._reader = KmsgReader(log)
    evidence = Evidence("read_far", 77)
    log.texts.extend(texts)
    ears.hear(evidence, 5.0, more_s=0.2)
    return evidence


def test_xid_of_a_program_is_heard_and_accuses_no_card() -> None:
    evidence = heard(XID_31)

    assert evidence.codes == {31}
    assert evidence.logged[0].pid == 77
    assert accusations(evidence) == []


def test_xid_of_a_broken_card_is_an_accusation() -> None:
    assert accusations(heard(XID_79))[0].startswith("XID 79: reboot")
    assert accusations(replace_events(79)) == ["XID 79 as an event: reboot"]
    assert accusations(replace_events(13, 31, 43)) == []


def replace_events(*codes: int) -> Evidence:
    return replace(Evidence("read_far", 77), events=list(codes))


def test_unreadable_kernel_log_is_said() -> None:
    ears = Ears(None, Path("/nowhere/kmsg"))

    assert not ears.has_log
    assert "no kernel log at /nowhere/kmsg" in ears.why_no_log
    evidence = Evidence("read_far", 77)
    ears.hear(evidence, 0.2)
    assert evidence.codes == set()


def test_xid_that_only_the_kernel_log_has_is_not_missed_by_who_may_not_read_it(
    tmp_path: Path,
) -> None:
    evidence = Evidence("read_misaligned", 77, events=[43])
    closed, empty = Ears(None, Path("/nowhere/kmsg")), tmp_path / "kmsg"
    empty.touch()
    open_ears = Ears(None, empty)

    with pytest.raises(NotTriedError, match="no XID 13, and the kernel log can't be read"):
        faults.try_xid(Trial(), Heard([evidence], closed), 13, ("read_misaligned",))
    trial = Trial()
    faults.try_xid(trial, Heard([evidence], open_ears), 13, ("read_misaligned",))

    assert trial.failures == ["no XID 13: {'read_misaligned': '43'}"]


class Heard(NamedTuple):
    """What is known after the faults, as `Faults` keeps it."""

    heard: list[Evidence]
    ears: Ears


def test_event_of_the_driver_is_heard_by_the_collector(node: StubNode) -> None:
    library = FakeNvml(node)
    waits = iter([(0x8, 31)])

    def wait(_set: object, data: object, _timeout: object) -> int:
        for kind, code in waits:
            place = data._obj  # type: ignore[attr-defined]
            place.eventType, place.eventData = kind, code
            place.device = ctypes.cast(ctypes.c_void_p(1), pynvml.c_nvmlDevice_t)
            return 0
        return 10

    library._special["nvmlEventSetWait_v2"] = wait
    use(library)

    with watching(pynvml, "13.0") as watched:
        ears = Ears(watched, Path("/nowhere/kmsg"))
        evidence = Evidence("read_far", 77)
        ears.hear(evidence, 5.0, more_s=0.1)

    assert ears.has_events
    assert evidence.events == [31]
    assert fault_evidence.accusations(evidence) == []


# ---- a real agent and a real job


def test_memory_of_the_drivers_library_is_told_apart_from_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build(tmp_path)
    stub = StubNode(1)
    stub.answers["nvml-mib"] = "64"
    stub.save(tmp_path / "gpus")
    monkeypatch.setenv("NVML_STUB_STATE", str(tmp_path / "gpus"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    trial = Trial()

    with agent_beside() as agent:
        eventually(lambda: agent.samples("rankmend_gpu_temperature_celsius"), "a temperature")
        judge_memory(trial, agent.process.pid, ask_memory())

    figures = trial.figures
    assert figures["nvml_itself_mib"] == pytest.approx(64, abs=4)
    assert figures["libcuda_given_back_mib"] == pytest.approx(32, abs=4)
    assert figures["own_pss_mib"] == pytest.approx(figures["pss_mib"] - 64, abs=4)
    assert figures["child_own_mib"] < 32, "libcuda's memory is gone"


def test_library_that_a_process_has_loaded_is_found() -> None:
    assert has_mapped(os.getpid(), "libc.so")
    assert not has_mapped(os.getpid(), "libc.sox")


def test_agent_beside_a_job_names_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build(tmp_path)
    stub = StubNode(1)
    stub.save(tmp_path / "gpus")
    monkeypatch.setenv("NVML_STUB_STATE", str(tmp_path / "gpus"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, sys, time, pathlib, rankmend\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "(folder / f'rank-{os.environ[\"RANK\"]}').write_text(str(os.getpid()))\n"
        "while not (folder / 'stop').exists():\n    time.sleep(0.05)\n"
    )
    session = AgentWithRanks(script)
    done = threading.Event()

    def show() -> bool:
        """Show the ranks as NVML would, while they live."""
        alive = [pid for pid in session.pids().values() if Path(f"/proc/{pid}").exists()]
        pairs = [number for pid in alive for number in (pid, 600 << 20)]
        stub.set(0, "nvmlDeviceGetComputeRunningProcesses", *pairs)
        stub.save(tmp_path / "gpus")
        return done.is_set()

    thread = threading.Thread(target=eventually, args=(show, "the end of the job"))
    thread.start()
    trial = Trial()
    before = pynvml.nvmlLib
    use(FakeNvml(stub))
    try:
        eventually(lambda: len(session.pids()) == 2, "both ranks")
        eventually(
            lambda: len(stub.answers["0/nvmlDeviceGetComputeRunningProcesses"].split()) == 4,
            "both ranks, shown by NVML",
        )
        try_ranks(trial, session, pynvml)
    finally:
        use(before)
        done.set()
        thread.join()
        session.end()

    assert trial.failures == []
    assert trial.figures["rank_0_mib"] == 600
    assert session.agent.process.returncode == 0
