"""Reading GPUs, against a Python object in the place of the NVML library."""

import ctypes
import os
from collections.abc import Iterator
from struct import pack

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.families import FAMILIES
from agent.findings.policy_files import load_checks
from agent.nvml import fields
from agent.nvml.child import WHOLE_S, Child
from agent.nvml.children import make_page, read_call
from agent.nvml.fields import NO_GPU
from agent.nvml.groups import pcie_replays_max
from agent.nvml.known_gpus import GpuMessage, SweepMessage, decode
from agent.nvml.nvml_calls import UNSUPPORTED_S, CallPage, GpuLostError, NvmlGoneError
from agent.nvml.sampler import GpuProcess, GpuSampler
from rankmend.errors import SourceError
from tests.support.agent import PATIENT, ROOT, FakeClock
from tests.support.nvml_stub.fake import TIMEOUT, FakeNvml
from tests.support.nvml_stub.node import LINKS, StubNode

GROUPS = ("fast", "activity", "medium", "slow")


@pytest.fixture
def node() -> Iterator[StubNode]:
    """GPUs that pynvml shows for the time of a test."""
    before = pynvml.nvmlLib
    node = StubNode()
    use(FakeNvml(node))
    yield node
    use(before)


CLUSTER = "5f1c9a3e77b04d0c9f2ee4a1d2c3b4a5"


def use(library: object) -> None:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()


def opened(clock: FakeClock | None = None, skipped: frozenset[int] = frozenset()) -> GpuSampler:
    descriptor = make_page()
    sampler = GpuSampler(pynvml, CallPage(descriptor), (clock or FakeClock()).now_s, cuda="13.0")
    os.close(descriptor)  # the page stays mapped
    sampler.open(skipped)
    return sampler


class FakeChannel:
    """The agent's end: keeps what is sent."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []

    def setsockopt(self, *_option: object) -> None:
        pass

    def send(self, data: bytes) -> int:
        self.packets.append(data)
        return len(data)

    def pop_fast(self) -> list[GpuMessage]:
        """Return the messages about what checks read, and forget all."""
        messages, self.packets = [decode(data) for data in self.packets], []
        return [m for m in messages if isinstance(m, GpuMessage) and m.group == fields.CHECKED]


def values_of(sampler: GpuSampler, group: str, gpu: int = 0) -> dict[str, float]:
    """Return values by name and labels, ``name{label,label}``."""
    return {
        name + ("{" + ",".join(labels) + "}" if labels else ""): value
        for name, labels, value in sampler.sample(sampler.gpus[gpu], group)
    }


def test_healthy_gpu_is_read_in_base_units(node: StubNode) -> None:
    sampler = opened()

    fast, medium = values_of(sampler, "fast"), values_of(sampler, "medium")
    slow = values_of(sampler, "slow")

    assert fast["temperature_celsius"] == 45
    assert fast["memory_temperature_celsius"] == 58
    assert fast["slowdown_margin_celsius"] == 44  # 42 to the limit, which is 2 before the slowdown
    assert fast["power_watts"] == pytest.approx(310.5)
    assert fast["energy_joules_total"] == pytest.approx(1e6)
    assert fast["clock_hertz{sm}"] == 1.98e9
    assert fast["utilization_ratio"] == 0.98
    assert fast["memory_used_bytes"] == 60 << 30
    assert fast["recovery_action_id"] == 0
    assert medium["nvlink_up{3}"] == 1
    assert medium["nvlink_transmit_bytes_total{0}"] == 1000 * 1024
    assert medium["nvlink_speed_bytes_per_second{0}"] == 26562e6
    assert medium["pcie_transmit_bytes_total"] == 1e12
    assert medium["fabric_unhealthy{degraded_bandwidth}"] == 0
    assert slow["power_limit_watts"] == 700
    assert sampler.gpus[1].identity.pci_bus_id == "0000:1c:00.0"
    assert sampler.gpus[0].error_count == 0


def test_gpus_that_a_bridge_joins_are_each_others_peers(node: StubNode) -> None:
    node.bridge(0, 1)
    node.set(0, "nvmlDeviceGetNvLinkState/2", 0)

    slow = values_of(opened(), "slow")

    assert slow["nvlink_peer_links{0000:1c:00.0}"] == LINKS - 1


@pytest.mark.parametrize(
    "change",
    [
        {"field/147/0": LINKS},  # to switches
        {"field/91/0": 0},  # no NVLink
        {f"nvmlDeviceGetNvLinkRemoteDeviceType/{link}": 2 for link in range(LINKS)},
        {f"nvmlDeviceGetNvLinkRemotePciInfo/{link}": "E6" for link in range(LINKS)},
    ],
    ids=["switches", "none", "switches by type", "not found"],
)
def test_links_that_lead_to_no_gpu_name_no_peer(
    node: StubNode, change: dict[str, int | str]
) -> None:
    node.bridge(0, 1)
    for function, value in change.items():
        node.set(0, function, value)

    assert not [key for key in values_of(opened(), "slow") if key.startswith("nvlink_peer")]


@pytest.mark.parametrize("is_set", [0, 1])
def test_the_flags_by_which_nvidia_takes_a_gpu_out_are_read(node: StubNode, is_set: int) -> None:
    node.set(0, "nvmlDeviceGetSramEccErrorStatus", is_set)
    node.set(0, "nvmlDeviceGetUnrepairableMemoryFlag_v1", is_set)

    medium = values_of(opened(), "medium")

    assert medium["sram_threshold_exceeded"] == is_set
    assert medium["memory_unrepairable"] == is_set


def test_a_driver_without_these_flags_has_no_such_series(node: StubNode) -> None:
    medium = values_of(opened(), "medium")

    assert not {"sram_threshold_exceeded", "memory_unrepairable"} & medium.keys()


def test_clique_is_told_with_its_cluster(node: StubNode) -> None:
    node.join_fabric(0, CLUSTER, 7)

    assert values_of(opened(), "medium")[f"fabric_info{{{CLUSTER},7}}"] == 1


def test_stand_in_for_a_passed_through_card_has_the_series_of_a_real_one(node: StubNode) -> None:
    """The file has what the agent told of an H200 in a virtual machine, driver 580.159.04, on 2026-11-26."""
    node.pass_through(0)
    sampler = opened()
    values_of(sampler, "activity")

    told = {key for group in GROUPS for key in values_of(sampler, group)}

    real = (ROOT / "tests" / "fixtures" / "nvml" / "h200-series").read_text().splitlines()
    reckoned = {"pcie_replays_per_minute_max"}  # since then, from generation and width
    assert {key for key in told if not key.startswith("info{")} == set(real) | reckoned


def test_activity_is_a_mean_between_two_samples(node: StubNode) -> None:
    sampler = opened()

    first, second = values_of(sampler, "activity"), values_of(sampler, "activity")

    assert "sm_active_ratio" not in first
    assert second["sm_active_ratio"] == 0.875
    assert second["dram_active_ratio"] == 0.55
    assert second["pipe_active_ratio{tensor}"] == 0.635
    assert second["pipe_active_ratio{fp64}"] == 0, "measured, and idle"
    assert second["engine_utilization_ratio{decoder}"] == 0


@pytest.mark.parametrize("percent", ["nan", "inf", "-1", "101", "E3", "E999"])
def test_activity_that_makes_no_sense_or_is_unknown_is_absent(node: StubNode, percent: str) -> None:
    node.set(0, "gpm/5", percent)
    sampler = opened()
    values_of(sampler, "activity")

    values = values_of(sampler, "activity")

    assert "pipe_active_ratio{tensor}" not in values
    assert values["sm_active_ratio"] == 0.875


@pytest.mark.parametrize("support", [0, None])
def test_card_without_profiling_has_no_activity_and_no_error(
    node: StubNode, support: int | None
) -> None:
    node.remove(0, "nvmlGpmQueryDeviceSupport")
    if support is not None:
        node.set(0, "nvmlGpmQueryDeviceSupport", support)
    sampler = opened()

    values = [values_of(sampler, "activity") for _time in range(2)][-1]

    assert {name.partition("{")[0] for name in values} == {"engine_utilization_ratio"}
    assert sampler.gpus[0].error_count == 0


def test_profiling_that_is_switched_off_asks_for_no_counters(node: StubNode) -> None:
    descriptor = make_page()
    sampler = GpuSampler(pynvml, CallPage(descriptor), FakeClock().now_s, has_profiling=False)
    os.close(descriptor)
    sampler.open(frozenset())

    values_of(sampler, "activity")

    assert not [name for name in pynvml.nvmlLib.calls if name.startswith("nvmlGpm")]


def test_samples_of_profiling_are_freed(node: StubNode) -> None:
    sampler = opened()
    for _time in range(5):
        values_of(sampler, "activity")
    assert len(pynvml.nvmlLib.samples) == 2

    sampler.close()

    assert pynvml.nvmlLib.samples == {}


def test_each_mig_instance_is_listed_with_its_memory_and_activity(node: StubNode) -> None:
    node.add_mig(0, 0, gpu_instance=3)
    node.add_mig(0, 2, gpu_instance=5, profile="2g.20gb")
    sampler = opened()
    values_of(sampler, "activity")

    values = values_of(sampler, "activity")

    assert values["mig_info{3,0,MIG-00000000-0-0,1g.10gb}"] == 1
    assert values["mig_info{5,0,MIG-00000000-0-2,2g.20gb}"] == 1
    assert values["mig_memory_size_bytes{5,0}"] == 10 << 30
    assert values["mig_memory_used_bytes{5,0}"] == 2 << 30
    assert values["mig_sm_active_ratio{3}"] == 0.4375
    assert values["mig_pipe_active_ratio{5,tensor}"] == 0.3175
    assert "sm_active_ratio" not in values, "the whole card has none with MIG on"
    assert sampler.gpus[0].error_count == 0


def test_every_value_has_a_metric_with_its_labels(node: StubNode) -> None:
    sampler = opened()

    read = [value for group in GROUPS for value in sampler.sample(sampler.gpus[0], group)]

    assert len(read) > 120
    for name, labels, _value in read:
        family = FAMILIES[f"rankmend_gpu_{name}"]
        assert len(family.labels) == 3 + len(labels), name


def test_what_a_card_does_not_support_is_absent_and_never_zero(node: StubNode) -> None:
    for key in [key for key in node.answers if key.startswith("0/")]:
        if "Handle" not in key and "PciInfo" not in key and "UUID" not in key:
            del node.answers[key]
    sampler = opened()

    read = {group: values_of(sampler, group) for group in GROUPS}

    assert read["fast"] == {}
    assert read["medium"] == {}
    assert list(read["slow"]) == ["info{,,,,,,580.95.05,13.0}"]
    assert sampler.processes(sampler.gpus[0]) is None
    assert sampler.gpus[0].error_count == 0


def test_unsupported_call_is_not_made_again_until_an_hour_has_passed(node: StubNode) -> None:
    clock = FakeClock()
    library = pynvml.nvmlLib
    node.remove(0, "nvmlDeviceGetPerformanceState")
    node.remove(0, "field/82/0")
    sampler = opened(clock)
    values_of(sampler, "fast")
    node.set(0, "nvmlDeviceGetPerformanceState", 2)
    node.field(0, 82, 61)
    library.calls.clear()

    soon = values_of(sampler, "fast")
    calls = list(library.calls)
    clock.time_s += UNSUPPORTED_S
    values_of(sampler, "fast")  # asks again
    later = values_of(sampler, "fast")

    assert "performance_state_id" not in soon
    assert "nvmlDeviceGetPerformanceState" not in calls
    assert "memory_temperature_celsius" not in soon
    assert later["performance_state_id"] == 2
    assert later["memory_temperature_celsius"] == 61


def test_old_driver_without_the_newer_symbols_is_read_by_the_older_ones(node: StubNode) -> None:
    use(FakeNvml(node, is_old=True))
    node.answers["nvmlSystemGetDriverVersion"] = "470.256.02"
    node.set(0, "nvmlDeviceGetCurrentClocksThrottleReasons", 0x40)
    clock = FakeClock()
    sampler = opened(clock)

    values_of(sampler, "fast")
    clock.time_s += 2
    fast = values_of(sampler, "fast")

    assert fast["memory_used_bytes"] == 60 << 30
    assert "memory_reserved_bytes" not in fast
    assert "temperature_margin_celsius" not in fast
    assert fast["slowdown_margin_celsius"] == 92 - 45
    assert sampler.gpus[0].seconds["hw_thermal_slowdown"] == 2


@pytest.mark.parametrize(("driver", "is_read"), [("570.86.15", False), ("580.65.06", True)])
def test_fields_that_were_numbered_anew_are_read_from_r580_on(
    node: StubNode, driver: str, is_read: bool
) -> None:
    node.answers["nvmlSystemGetDriverVersion"] = driver
    sampler = opened()

    fast = values_of(sampler, "fast")

    assert ("clocks_limited_seconds_total{hw_power_brake_slowdown}" in fast) is is_read
    assert "clocks_limited_seconds_total{sw_power_cap}" in fast


def test_structure_of_another_version_falls_back_to_the_older_one(node: StubNode) -> None:
    node.set(0, "nvmlDeviceGetGpuFabricInfoV/3", "E25")
    node.set(0, "nvmlDeviceGetGpuFabricInfoV/2", 2, 0, 1, 1)
    sampler = opened()

    medium = values_of(sampler, "medium")

    assert medium["fabric_state_id"] == 2
    assert medium["fabric_unhealthy{degraded_bandwidth}"] == 1


def test_lost_gpu_is_told_apart_and_the_others_answer(node: StubNode) -> None:
    sampler = opened()
    node.lose(0)

    with pytest.raises(GpuLostError):
        values_of(sampler, "fast", gpu=0)

    assert values_of(sampler, "fast", gpu=1)["temperature_celsius"] == 45


def test_gpu_that_is_lost_from_the_start_can_come_back(node: StubNode) -> None:
    node.lose(1)
    sampler = opened()
    was_lost = sampler.gpus[1].is_lost
    node.lose(1, is_lost=False)

    sampler.reopen(sampler.gpus[1])

    assert was_lost
    assert not sampler.gpus[1].is_lost
    assert sampler.gpus[1].identity.uuid.endswith("1")


def test_skipped_gpu_is_never_touched(node: StubNode) -> None:
    node.set(0, "nvmlDeviceGetHandleByIndex", "E999")

    sampler = opened(skipped=frozenset({0}))

    assert [gpu.index for gpu in sampler.gpus] == [1]
    assert pynvml.nvmlLib.calls.count("nvmlDeviceGetHandleByIndex_v2") == 1


def test_error_of_one_call_costs_one_value_and_is_counted(node: StubNode) -> None:
    node.set(0, "nvmlDeviceGetPerformanceState", "E999")
    node.set(0, "field/83/0", "E999")
    sampler = opened()

    fast = values_of(sampler, "fast")

    assert "performance_state_id" not in fast
    assert "energy_joules_total" not in fast
    assert fast["temperature_celsius"] == 45
    assert sampler.gpus[0].error_count == 2


def test_gpu_that_asks_for_a_reset_says_so(node: StubNode) -> None:
    node.set(0, "nvmlDeviceGetUtilizationRates", "E16")
    sampler = opened()

    values_of(sampler, "fast")

    assert sampler.gpus[0].needs_reset


def test_driver_that_is_exchanged_under_us_ends_the_sampler(node: StubNode) -> None:
    sampler = opened()
    node.set(0, "nvmlDeviceGetTemperature/0", "E18")

    with pytest.raises(NvmlGoneError):
        values_of(sampler, "fast")


def test_time_of_a_reason_is_summed_only_while_it_holds(node: StubNode) -> None:
    clock = FakeClock()
    sampler = opened(clock)
    held = []
    for reasons in (0x0, 0x4, 0x44, 0x0):
        node.set(0, "nvmlDeviceGetCurrentClocksEventReasons", reasons)
        values_of(sampler, "fast")
        held.append(dict(sampler.gpus[0].seconds))
        clock.time_s += 3

    assert [seconds["sw_power_cap"] for seconds in held] == [0, 3, 6, 6]
    assert [seconds["hw_thermal_slowdown"] for seconds in held] == [0, 0, 3, 3]
    assert set(held[0]) == set(fields.CLOCKS_EVENT_REASONS)


def test_link_that_is_down_is_zero_and_one_that_is_not_there_is_absent(node: StubNode) -> None:
    node.set(0, "nvmlDeviceGetNvLinkState/2", 0)
    node.field(0, 163, 7, scope=2)
    sampler = opened()

    medium = values_of(sampler, "medium")

    assert medium["nvlink_up{2}"] == 0
    assert medium["nvlink_errors_total{2,crc}"] == 7
    assert f"nvlink_up{{{LINKS}}}" not in medium


def test_links_of_an_older_gpu_are_counted_by_the_older_calls(node: StubNode) -> None:
    for link in range(LINKS):
        for field in (161, 162, 163):
            node.remove(0, f"field/{field}/{link}")
        node.set(0, f"nvmlDeviceGetNvLinkErrorCounter/{link}/2", 5)
    node.remove(0, "field/91/0")
    sampler = opened()

    medium = values_of(sampler, "medium")

    assert medium["nvlink_errors_total{1,crc_flit}"] == 5
    assert sum(name.startswith("nvlink_up") for name in medium) == LINKS


def test_pcie_throughput_is_sampled_only_where_bytes_are_not_counted(node: StubNode) -> None:
    node.remove(1, "field/197/0")
    sampler = opened()
    for gpu in (0, 1):
        values_of(sampler, "medium", gpu)

    counted, sampled = values_of(sampler, "slow", 0), values_of(sampler, "slow", 1)

    assert "pcie_transmit_bytes_per_second" not in counted
    assert sampled["pcie_transmit_bytes_per_second"] == 1e6


def test_processes_of_several_instances_are_added_up(node: StubNode) -> None:
    not_available = 2**64 - 1
    node.set(0, "nvmlDeviceGetComputeRunningProcesses", 41, 100, 41, 50, 42, not_available)
    sampler = opened()

    processes = sampler.processes(sampler.gpus[0])

    assert processes == [GpuProcess(41, 150), GpuProcess(42, None)]
    assert sampler.processes(sampler.gpus[1]) == []


def test_page_names_the_call_under_way_and_is_empty_afterwards() -> None:
    descriptor = make_page()
    page = CallPage(descriptor)

    before = read_call(descriptor)
    page.begin("nvmlDeviceGetTemperature", 3, 12.5)
    during = read_call(descriptor)
    page.end()

    assert before is None
    assert during is not None
    assert (during.name, during.gpu, during.began_at_s) == ("nvmlDeviceGetTemperature", 3, 12.5)
    assert read_call(descriptor) is None
    assert NO_GPU == -1
    os.close(descriptor)


@pytest.mark.parametrize(
    ("value_type", "raw", "value"),
    [
        (0, pack("<d", 1.5), 1.5),
        (1, pack("<I4x", 7), 7),
        (3, pack("<Q", 2**40), 2**40),
        (4, pack("<q", -3), -3),
        (5, pack("<i4x", -3), -3),
        (6, pack("<H6x", 9), 9),
        (1, pack("<I4x", 2**32 - 1), None),  # not available
        (3, pack("<Q", 2**64 - 1), None),
        (7, bytes(8), None),  # a type of the future
    ],
)
def test_value_is_decoded_by_its_type(value_type: int, raw: bytes, value: float | None) -> None:
    assert fields.decode_value(value_type, raw) == value


@PATIENT
@given(st.integers(-(2**31), 2**31 - 1), st.binary(min_size=8, max_size=8))
def test_no_bytes_of_a_value_raise(value_type: int, raw: bytes) -> None:
    value = fields.decode_value(value_type, raw)

    assert value is None or isinstance(value, float)


@PATIENT
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode()))
def test_nonsense_from_a_child_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError):
        decode(b'{"kind":"gpu",' + data)


def test_no_two_fields_of_a_batch_have_one_name_and_labels() -> None:
    for batch in ((*fields.FAST_CHECKED, *fields.FAST_SHOWN), fields.MEDIUM, fields.SLOW):
        named = [(field.name, field.labels) for field in batch]
        assert len(set(named)) == len(named)


ONES = 0xFFFF_FFFF


def test_all_ones_of_a_function_are_no_value(node: StubNode) -> None:
    for function, answer in (
        ("nvmlDeviceGetTemperature/0", 255),
        ("nvmlDeviceGetClockInfo/0", ONES),
        ("nvmlDeviceGetFanSpeed", ONES),
        ("nvmlDeviceGetCurrPcieLinkWidth", ONES),
        ("nvmlDeviceGetMaxPcieLinkGeneration", ONES),
    ):
        node.set(0, function, answer)
    node.set(0, "nvmlDeviceGetUtilizationRates", ONES, 61)

    sampler = opened()
    fast, medium = values_of(sampler, "fast"), values_of(sampler, "medium")

    assert {"temperature_celsius", "clock_hertz{graphics}", "fan_ratio"}.isdisjoint(fast)
    assert "utilization_ratio" not in fast
    assert fast["memory_utilization_ratio"] == pytest.approx(0.61)
    assert fast["clock_hertz{sm}"] > 0
    assert {"pcie_width_lanes", "pcie_generation_max"}.isdisjoint(medium)
    assert "pcie_replays_per_minute_max" not in medium  # of a link that nobody knows


@pytest.mark.parametrize(
    ("generation", "lanes", "replays"),
    [(3, 16, 8), (4, 16, 16), (5, 16, 31), (6, 16, 62), (5, 8, 16), (4, 1, 1), (1, 16, 3)],
)
def test_a_link_may_have_as_many_replays_as_its_generation_and_width_allow(
    generation: int, lanes: int, replays: int
) -> None:
    assert pcie_replays_max(generation, lanes) == replays


@pytest.mark.parametrize(("generation", "lanes"), [(None, 16), (5, None), (0, 16), (5, 0), (7, 16)])
def test_the_replays_of_a_link_of_unknown_kind_have_no_limit(
    generation: int | None, lanes: int | None
) -> None:
    assert pcie_replays_max(generation, lanes) is None


def test_place_in_the_rack_is_told_where_the_driver_knows_it(node: StubNode) -> None:
    node.answers["0/nvmlDeviceGetPlatformInfo"] = "1821325191344 7 3 1 2"
    sampler = opened()

    with_rack, without = values_of(sampler, "slow", gpu=0), values_of(sampler, "slow", gpu=1)

    assert with_rack["platform_info{1821325191344,7,3,1,2}"] == 1
    assert not [name for name in without if name.startswith("platform_info")]


def test_child_sends_values_that_stand_once_and_what_changes_at_once(node: StubNode) -> None:
    channel = FakeChannel()
    child = Child(opened(), channel, 1.0, frozenset())  # type: ignore[arg-type]
    child._sweep(100.0)
    first = channel.pop_fast()

    child._sweep(101.0)
    second = channel.pop_fast()
    node.set(1, "nvmlDeviceGetTemperature/0", 91)
    child._sweep(102.0)
    third = channel.pop_fast()

    assert [message.gpu for message in first] == [0, 1]
    assert all(message.values for message in first)
    assert second == []
    assert [message.gpu for message in third] == [1]
    assert ("temperature_celsius", (), 91) in (third[0].values or ())
    assert WHOLE_S < 60.0  # an agent that has lost them soon has them again


def test_field_that_fails_is_counted_each_time_and_one_that_changes_is_read_at_once(
    node: StubNode,
) -> None:
    sampler = opened()
    gpu = sampler.gpus[0]
    before = values_of(sampler, "medium")

    node.field(0, 4, 3)
    changed = values_of(sampler, "medium")
    again = values_of(sampler, "medium")
    node.set(0, "field/4/0", "E999")
    errors = []
    for _read in range(3):
        values_of(sampler, "medium")
        errors.append(gpu.error_count)

    name = "ecc_errors_total{uncorrected,volatile}"
    assert (before[name], changed[name], again[name]) == (0, 3, 3)
    assert errors == [1, 2, 3]


def test_sweep_names_the_gpus_that_were_read_and_are_as_they_were(node: StubNode) -> None:
    channel = FakeChannel()
    child = Child(opened(), channel, 1.0, frozenset())  # type: ignore[arg-type]
    child._sweep(100.0)
    channel.packets.clear()

    node.set(1, "nvmlDeviceGetTemperature/0", 91)
    child._sweep(101.0)

    sweep = decode(channel.packets[-1])
    assert isinstance(sweep, SweepMessage)
    assert sweep.same[fields.CHECKED] == [0]


def test_time_under_a_reason_that_a_check_reads_is_sent_at_once_and_other_time_is_kept(
    node: StubNode,
) -> None:
    channel, clock = FakeChannel(), FakeClock()
    child = Child(opened(clock), channel, 1.0, frozenset())  # type: ignore[arg-type]
    node.set(0, "nvmlDeviceGetCurrentClocksEventReasons", 0x1)  # idle
    node.set(1, "nvmlDeviceGetCurrentClocksEventReasons", 0x40)  # slowed by heat
    child._sweep(100.0)
    channel.pop_fast()

    clock.time_s += 1.0
    child._sweep(101.0)
    (slowed,) = channel.pop_fast()
    node.set(0, "nvmlDeviceGetTemperature/0", 91)
    clock.time_s += 1.0
    child._sweep(102.0)
    hotter = channel.pop_fast()[0]

    assert (slowed.gpu, slowed.seconds["hw_thermal_slowdown"]) == (1, 1.0)
    assert (hotter.gpu, hotter.seconds["gpu_idle"]) == (0, 2.0)


def test_every_reason_that_a_shipped_check_reads_is_sent_at_once() -> None:
    family = "rankmend_gpu_clocks_event_seconds_total"
    checks = [check for check in load_checks(FAMILIES) if check.metric == family]

    read = {
        reason
        for reason in fields.CLOCKS_EVENT_REASONS
        if any(check.means((("reason", reason),)) for check in checks)
    }

    assert read == fields.CHECKED_REASONS


def test_child_sends_all_values_of_a_gpu_that_is_back(node: StubNode) -> None:
    channel = FakeChannel()
    sampler = opened()
    child = Child(sampler, channel, 1.0, frozenset())  # type: ignore[arg-type]
    child._sweep(100.0)
    node.lose(0)
    child._sweep(101.0)
    node.lose(0, is_lost=False)
    sampler.reopen(sampler.gpus[0])
    channel.pop_fast()

    child._sweep(102.0)
    (back,) = [message for message in channel.pop_fast() if message.gpu == 0]

    assert not back.is_lost
    assert back.values


def test_wait_for_events_that_is_shorter_than_a_millisecond_is_no_loop(node: StubNode) -> None:
    waited_ms: list[int] = []

    def wait(_set: object, _data: object, timeout: ctypes.c_uint) -> int:
        waited_ms.append(timeout.value)
        return TIMEOUT

    library = FakeNvml(node)
    library._special["nvmlEventSetWait_v2"] = wait
    use(library)

    assert opened().wait_event(0.0004) is None

    assert waited_ms == [1]
