"""What can make a rank slow, and how hardware shows it: the table behind `detectors.slow.causes`.

Each row is a cause. Any one of its `signs` is enough to name it; `supports` are shown beside the
signs and name nothing. A sign counts by its deviation from the peers, never by its absolute value.
Figures without an outside source follow one rule: the smallest slowdown that is called slow, 1.1,
costs 1 - 1/1.1 = 9 % of the time, and a sign that explains less than half of it (5 %) is no cause.
docs/use/diagnose-slow.md shows the table; a test compares it with this file.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.finding import Action
from detectors.slow.hardware_reading import RUN_QUEUE

LOST_MIN: Final = 0.05
_LOST: Final = "half of what a slowdown of 1.1 costs"


class SlowSection(Enum):
    """The part of a step that became slow."""

    COMPUTE = "compute"
    IO = "io"
    COMMUNICATION = "communication"
    UNKNOWN = "unknown"  # the records don't separate the parts, so every cause is possible


class Scope(Enum):
    """What a cause is about, which decides what it is compared with."""

    GPU = "gpu"
    NIC = "nic"
    CGROUP = "cgroup"
    RANK = "rank"
    NODE = "node"


class Directness(Enum):
    """How directly a sign shows lost time; the value is the highest confidence in such a cause.

    The values rank the signs and are not calibrated: seconds that the device or kernel counted for
    this very part rank above a part that runs below its peers, and so on.
    """

    LOST_TIME = 0.9  # seconds during which this part was held
    DEGRADED = 0.8  # the part runs below its peers' rate
    WAITING = 0.7  # tasks on the node wait, perhaps not the rank's
    ERRORS = 0.6  # errors that cause retries
    CIRCUMSTANCE = 0.4  # comes with slowness, perhaps by coincidence


class Statistic(Enum):
    RATE = "rate"  # a counter's, per second
    LEVEL = "level"  # a gauge's median
    HIGHEST = "highest"  # the highest value of a gauge that falls while its part is idle


@dataclass(frozen=True, slots=True)
class Sign:
    metric: str  # as in docs/reference/metrics.md
    statistic: Statistic
    least: float  # the smallest deviation from the peers' median that counts
    what: str  # in words
    unit: str
    source: str  # where `least` comes from
    where: tuple[str, frozenset[str]] | None = None  # label and the values that are meant
    is_low: bool = False  # bad when lower than the peers
    is_share: bool = False  # `least` is a share of the peers' median
    floor: float = 0.0  # and at least this much in the metric's unit, beside a share


@dataclass(frozen=True, slots=True)
class SlowCause:
    name: str
    sections: frozenset[SlowSection]
    scope: Scope
    directness: Directness
    signs: tuple[Sign, ...]
    summary: str
    action: Action
    supports: tuple[Sign, ...] = ()
    implied_by: str = ""  # a cause with the same signs: if that one is found, this one is not named


def _held(reasons: str, what: str) -> Sign:
    return Sign(
        "rankmend_gpu_clocks_event_seconds_total",
        Statistic.RATE,
        LOST_MIN,
        what,
        "s/s",
        _LOST,
        ("reason", frozenset(reasons.split())),
    )


def _rate(
    metric: str, least: float, what: str, source: str, unit: str = "/s", where: str = ""
) -> Sign:
    label, _equals, values = where.partition("=")
    chosen = (label, frozenset(values.split())) if values else None
    return Sign(metric, Statistic.RATE, least, what, unit, source, chosen)


def _pressure(kind: str, what: str) -> Sign:
    return _rate(
        "rankmend_pressure_some_seconds_total", LOST_MIN, what, _LOST, "s/s", f"resource={kind}"
    )


_COMPUTE: Final = frozenset({SlowSection.COMPUTE})
_IO: Final = frozenset({SlowSection.IO})
_NETWORK: Final = frozenset({SlowSection.COMMUNICATION})
_ANY: Final = frozenset({SlowSection.COMPUTE, SlowSection.IO, SlowSection.COMMUNICATION})
_DEGREES: Final = "own choice: slots of one chassis differ by several degrees"

_CLOCK: Final = Sign(
    "rankmend_gpu_clock_hertz",
    Statistic.LEVEL,
    LOST_MIN,
    "SM clock",
    "Hz",
    _LOST,
    ("clock", frozenset({"sm"})),
    is_low=True,
    is_share=True,
)
_HOT: Final = Sign(
    "rankmend_gpu_temperature_celsius",
    Statistic.LEVEL,
    10.0,
    "temperature of the core",
    "°C",
    _DEGREES,
)
_HBM_HOT: Final = Sign(
    "rankmend_gpu_memory_temperature_celsius",
    Statistic.LEVEL,
    10.0,
    "temperature of the memory",
    "°C",
    _DEGREES,
)
_POWER_LOW: Final = Sign(
    "rankmend_gpu_power_limit_watts",
    Statistic.LEVEL,
    LOST_MIN,
    "power limit",
    "W",
    _LOST,
    is_low=True,
    is_share=True,
)
_DIRTY: Final = Sign(
    "rankmend_host_memory_dirty_bytes",
    Statistic.LEVEL,
    1.0,
    "memory not yet written to disk",
    "B",
    "twice the peers'; below 256 MiB a write-back is over within a second",
    is_share=True,
    floor=256 * 2**20,
)
_DISK_READS: Final = Sign(
    "rankmend_disk_read_bytes_total",
    Statistic.RATE,
    1.0,
    "read from local disks",
    "B/s",
    "twice the peers', and more than 10 MB/s: reads of logs and libraries stay below",
    is_share=True,
    floor=10e6,
)
_MEMORY_SHORT: Final = Sign(
    "rankmend_host_memory_available_bytes",
    Statistic.LEVEL,
    0.2,
    "memory available",
    "B",
    "own choice: ranks of one job take alike, so a fifth less is the node's own",
    is_low=True,
    is_share=True,
)

CAUSES: Final = (
    SlowCause(
        "gpu_thermal_slowdown",
        _COMPUTE,
        Scope.GPU,
        Directness.LOST_TIME,
        (_held("sw_thermal_slowdown hw_thermal_slowdown", "clocks held for heat"),),
        "the GPU throttles because of heat",
        Action.DRAIN,
        (_CLOCK, _HOT, _HBM_HOT),
    ),
    SlowCause(
        "gpu_power_brake",
        _COMPUTE,
        Scope.GPU,
        Directness.LOST_TIME,
        (
            _held(
                "hw_power_brake_slowdown hw_slowdown",
                "clocks held by hardware (power brake or slowdown)",
            ),
        ),
        "hardware slows the GPU down: power supply, power brake or heat",
        Action.DRAIN,
        (_CLOCK,),
    ),
    SlowCause(
        "gpu_power_cap",
        _COMPUTE,
        Scope.GPU,
        Directness.LOST_TIME,
        (_held("sw_power_cap board_limit reliability", "clocks held by the power limit"),),
        "the power limit holds the GPU's clocks more than its peers'",
        Action.WATCH,
        (_CLOCK, _POWER_LOW),
    ),
    SlowCause(
        "gpu_clock_low",
        _COMPUTE,
        Scope.GPU,
        Directness.DEGRADED,
        (_CLOCK,),
        "the GPU runs at lower clocks than its peers",
        Action.DRAIN,
        (_HOT, _HBM_HOT, _POWER_LOW),
    ),
    SlowCause(
        "gpu_memory_errors",
        _COMPUTE,
        Scope.GPU,
        Directness.ERRORS,
        (
            _rate(
                "rankmend_gpu_ecc_errors_total",
                10.0,
                "memory errors",
                "DCGM_LIMIT_* in dcgm_structs.h: rate of single-bit errors 10",
                where="counter=volatile",
            ),
        ),
        "the GPU keeps correcting memory errors",
        Action.DRAIN,
    ),
    SlowCause(
        "gpu_shared",
        _COMPUTE,
        Scope.GPU,
        Directness.CIRCUMSTANCE,
        (
            Sign(
                "rankmend_gpu_foreign_processes",
                Statistic.HIGHEST,
                1.0,
                "processes of others on the GPU",
                "",
                "one is one too many",
            ),
        ),
        "a foreign process runs on the GPU",
        Action.WATCH,
    ),
    SlowCause(
        "gpu_hot",
        _COMPUTE,
        Scope.GPU,
        Directness.CIRCUMSTANCE,
        (_HBM_HOT, _HOT),
        "the GPU is hotter than its peers, with no sign of throttling",
        Action.WATCH,
    ),
    SlowCause(
        "pcie_degraded",
        _ANY,
        Scope.GPU,
        Directness.DEGRADED,
        tuple(
            Sign(
                metric,
                Statistic.HIGHEST,
                1.0,
                what,
                unit,
                "one lane or generation: no node of one kind has fewer by design",
                is_low=True,
            )
            for metric, what, unit in (
                ("rankmend_gpu_pcie_width_lanes", "PCIe width", "lanes"),
                ("rankmend_gpu_pcie_generation", "PCIe generation", ""),
            )
        ),
        "the GPU's PCIe link runs below its peers'",
        Action.DRAIN,
        (
            _rate(
                "rankmend_gpu_pcie_errors_total",
                8 / 60,
                "PCIe replays",
                "NVIDIA's limit of 8 replays a minute, as check gpu_pcie_replays",
                where="kind=replay",
            ),
        ),
    ),
    SlowCause(
        "pcie_errors",
        _ANY,
        Scope.GPU,
        Directness.ERRORS,
        (
            _rate(
                "rankmend_gpu_pcie_errors_total",
                8 / 60,
                "PCIe errors",
                "NVIDIA's limit of 8 replays a minute, as check gpu_pcie_replays",
                where="kind=replay fatal non_fatal",
            ),
        ),
        "the GPU's PCIe link repeats transfers",
        Action.DRAIN,
    ),
    SlowCause(
        "nvlink_down",
        frozenset({SlowSection.COMPUTE, SlowSection.COMMUNICATION}),
        Scope.GPU,
        Directness.DEGRADED,
        (
            Sign(
                "rankmend_gpu_nvlink_up",
                Statistic.LEVEL,
                0.5,
                "state of its worst NVLink",
                "",
                "0 is down, 1 is up",
                is_low=True,
            ),
        ),
        "an NVLink of the GPU is down",
        Action.DRAIN,
    ),
    SlowCause(
        "nvlink_errors",
        frozenset({SlowSection.COMPUTE, SlowSection.COMMUNICATION}),
        Scope.GPU,
        Directness.ERRORS,
        (
            _rate(
                "rankmend_gpu_nvlink_errors_total",
                100.0,
                "NVLink checksum errors",
                "DCGM_LIMIT_* in dcgm_structs.h: NVLink CRC 100/s",
                where="kind=crc crc_flit crc_data",
            ),
            _rate(
                "rankmend_gpu_nvlink_errors_total",
                1 / 600,
                "NVLink replays and recoveries",
                "DCGM_LIMIT_* in dcgm_structs.h: NVLink errors 1; in 10 minutes as check gpu_nvlink_errors",
                where="kind=replay recovery",
            ),
        ),
        "the GPU's NVLinks repeat transfers",
        Action.DRAIN,
    ),
    SlowCause(
        "nic_degraded",
        _NETWORK,
        Scope.NIC,
        Directness.DEGRADED,
        tuple(
            Sign(
                metric,
                Statistic.HIGHEST,
                LOST_MIN,
                "rate of the link",
                "B/s",
                _LOST,
                is_low=True,
                is_share=True,
            )
            for metric in (
                "rankmend_nic_rate_bytes_per_second",
                "rankmend_ethernet_speed_bytes_per_second",
            )
        ),
        "the NIC's link is slower than its peers'",
        Action.DRAIN,
    ),
    SlowCause(
        "nic_paused",
        _NETWORK,
        Scope.NIC,
        Directness.LOST_TIME,
        tuple(
            _rate(f"rankmend_ethernet_{name}_seconds_total", LOST_MIN, what, _LOST, "s/s")
            for name, what in (
                ("priority_pause", "stopped by pause frames of a priority"),
                ("pause", "stopped by pause frames"),
            )
        ),
        "pause frames stop the NIC",
        Action.WATCH,
        (
            _rate(
                "rankmend_ethernet_priority_pause_frames_total",
                100.0,
                "pause frames of a priority",
                "as check nic_discards: 100/s",
            ),
        ),
    ),
    SlowCause(
        "nic_flapping",
        _NETWORK,
        Scope.NIC,
        Directness.ERRORS,
        (
            _rate(
                "rankmend_nic_link_downed_total",
                1 / 600,
                "times that the link went down",
                "NVSentinel: any is fatal; in 10 minutes as check nic_link_downed",
            ),
            _rate(
                "rankmend_ethernet_carrier_changes_total",
                2 / 600,
                "times that the link came or went",
                "NVSentinel: more than 2 an interval",
            ),
            _rate(
                "rankmend_nic_link_error_recoveries_total",
                5 / 60,
                "link recoveries",
                "NVSentinel: more than 5 a minute",
            ),
        ),
        "the NIC's link flaps",
        Action.DRAIN,
    ),
    SlowCause(
        "nic_errors",
        _NETWORK,
        Scope.NIC,
        Directness.ERRORS,
        (
            _rate(
                "rankmend_nic_symbol_errors_total",
                120 / 3600,
                "symbol errors",
                "NVSentinel: more than 120 an hour (IBTA, bit error rate 1e-12)",
            ),
            _rate(
                "rankmend_nic_receive_errors_total",
                10.0,
                "packets received with an error",
                "NVSentinel: more than 10/s",
            ),
            _rate(
                "rankmend_nic_transmit_discards_total",
                100.0,
                "packets discarded",
                "NVSentinel: more than 100/s",
            ),
            _rate(
                "rankmend_ethernet_link_errors_total",
                10.0,
                "errors at the port",
                "as receive errors: 10/s",
                where="kind=crc symbol uncorrected_symbol receive_discard transmit_discard",
            ),
        ),
        "the NIC's link has errors",
        Action.DRAIN,
    ),
    SlowCause(
        "nic_retransmits",
        _NETWORK,
        Scope.NIC,
        Directness.ERRORS,
        (
            _rate(
                "rankmend_nic_hardware_total",
                1.0,
                "acknowledgements that did not come",
                "NVSentinel: local_ack_timeout_err more than 1/s",
                where="counter=local_ack_timeout_err",
            ),
            _rate(
                "rankmend_nic_hardware_total",
                10.0,
                "retransmits and packets out of order",
                "NVSentinel: roce_slow_restart more than 10/s",
                where="counter=roce_slow_restart roce_adp_retrans roce_adp_retrans_to"
                " packet_seq_err out_of_sequence implied_nak_seq_err",
            ),
        ),
        "the NIC retransmits lost packets",
        Action.DRAIN,
    ),
    SlowCause(
        "cpu_throttled",
        _ANY,
        Scope.CGROUP,
        Directness.LOST_TIME,
        (
            _rate(
                "rankmend_cgroup_cpu_throttled_seconds_total",
                LOST_MIN,
                "kept from running by the CPU quota",
                _LOST,
                "s/s",
            ),
        ),
        "the CPU quota of the rank's control group is used up",
        Action.WATCH,
    ),
    SlowCause(
        "cpu_taken",
        _ANY,
        Scope.RANK,
        Directness.WAITING,
        (
            _rate(
                RUN_QUEUE,
                LOST_MIN,
                "ready to run and without a CPU",
                _LOST,
                "s/s",
            ),
        ),
        "other processes take the rank's CPU",
        Action.WATCH,
        implied_by="cpu_throttled",
    ),
    SlowCause(
        "cpu_crowded",
        _ANY,
        Scope.NODE,
        Directness.WAITING,
        (_pressure("cpu", "tasks waited for a CPU"),),
        "tasks on the node wait for a CPU",
        Action.WATCH,
    ),
    SlowCause(
        "memory_short",
        frozenset({SlowSection.COMPUTE, SlowSection.IO}),
        Scope.NODE,
        Directness.WAITING,
        (
            _pressure("memory", "tasks waited for memory"),
            _rate(
                "rankmend_host_swap_in_bytes_total",
                1e6,
                "read back from swap",
                "own choice: 250 pages a second, each a wait for a disk",
                "B/s",
            ),
        ),
        "tasks on the node wait for memory",
        Action.WATCH,
        (_MEMORY_SHORT,),
    ),
    SlowCause(
        "storage_wait",
        _IO,
        Scope.NODE,
        Directness.WAITING,
        (
            _pressure("io", "tasks waited for storage"),
            Sign(
                "rankmend_mount_answer_seconds",
                Statistic.LEVEL,
                0.1,
                "answer of its slowest file system",
                "s",
                "own choice: an answer takes milliseconds on a healthy mount (docs/reference/host.md)",
            ),
        ),
        "tasks on the node wait for storage",
        Action.WATCH,
        (_DIRTY, _DISK_READS),
    ),
    SlowCause(
        "page_cache_short",
        _IO,
        Scope.NODE,
        Directness.CIRCUMSTANCE,
        (_DISK_READS,),
        "the node reads from disk what its peers have in memory",
        Action.WATCH,
        (_MEMORY_SHORT,),
    ),
)

INFO: Final = frozenset(
    {
        "rankmend_rank_info",
        "rankmend_rank_gpu_info",
        "rankmend_rank_nic_info",
        "rankmend_rank_cgroup_info",
        "rankmend_nic_port_info",
    }
)
METRICS: Final = INFO | {
    sign.metric for cause in CAUSES for sign in (*cause.signs, *cause.supports)
}


def _selections() -> dict[str, tuple[str, frozenset[str]] | None]:
    """Return which series of each metric are looked at: label and values, None for all."""
    chosen: dict[str, tuple[str, frozenset[str]] | None] = dict.fromkeys(INFO)
    for cause in CAUSES:
        for sign in (*cause.signs, *cause.supports):
            known = chosen.get(sign.metric)
            if sign.metric in chosen and (known is None or sign.where is None):
                chosen[sign.metric] = None
            elif known is not None and sign.where is not None and known[0] == sign.where[0]:
                chosen[sign.metric] = (known[0], known[1] | sign.where[1])
            else:
                chosen[sign.metric] = sign.where if known is None else None
    return chosen


SELECTIONS: Final = _selections()
