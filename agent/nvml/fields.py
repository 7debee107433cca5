"""What the collector child and the agent share: their protocol, and NVML's field ids with their meanings and metric names.

Child to agent, over a packet socket: one JSON object per packet, at most `MESSAGE_BYTES_MAX`
bytes; `agent/nvml/known_gpus.py` has the types that the agent accepts. Agent to child: one byte
asks for the values that no check reads, with the next sweep; the end of the connection ends the child.

The child records its current call on a page of shared memory, because a child that hangs in a
driver call can send nothing. One writer (`agent/nvml/nvml_calls.py`); a number before and after the
call reveals a torn read (`agent/nvml/children.py`).

Standard library only, and as little of it as possible: the child loads this.

Source of the fields: nvml.h (field ids, units and scopes in its comments) as nvidia-ml-py 13.615 has them.
Ids above 250 were renumbered between R570 and R580 (251 in nvidia-ml-py 12.570 is 269 now), so they
are read only from R580 on.
"""

from struct import Struct
from typing import Final, NamedTuple

MESSAGE_BYTES_MAX: Final = (
    131072  # a GPU with 36 links needs 60 kB; the default send buffer is 208 kB
)
WANT_SHOWN: Final = b"s"
# number (odd: in a call), CLOCK_MONOTONIC at its start, GPU, name
CALL_ON_PAGE: Final = Struct("<Qdi44s")
NUMBER_ON_PAGE: Final = Struct("<Q")
NO_GPU: Final = -1  # a call about NVML as a whole


class NvmlCall(NamedTuple):
    """A driver call in progress. A tuple, because dataclasses would cost the child 1.4 MB."""

    number: int
    began_at_s: float  # CLOCK_MONOTONIC
    gpu: int  # index, or NO_GPU
    name: str


CHECKED: Final = "checked"  # what checks read: has the interval of the collector
SHOWN: Final = "shown"  # read before somebody is expected to look, and else as seldom as this
PERIOD_S_BY_GROUP: Final = {
    SHOWN: 15.0,
    "processes": 3.0,  # time until a restarted rank is found on its GPU
    "activity": 10.0,  # means over this time: how busy the units of the GPU are
    "medium": 10.0,  # errors and links: about 200 values a GPU
    "slow": 60.0,  # values that only an operator changes
}
VALUE: Final = Struct(
    "<IIqqiI8s"
)  # nvmlFieldValue_t: id, scope, timestamp, latency, type, return, value
_VALUE_TYPES: Final = (  # NVML_VALUE_TYPE_*: double, uint, ulong, ulonglong, longlong, int, ushort
    Struct("<d"),
    Struct("<I4x"),
    Struct("<Q"),
    Struct("<Q"),
    Struct("<q"),
    Struct("<i4x"),
    Struct("<H6x"),
)
_SIGNED: Final = Struct("<i")
_NOT_AVAILABLE: Final = {1: 2**32 - 1, 2: 2**64 - 1, 3: 2**64 - 1}


class Field(NamedTuple):
    id: int
    name: str  # metric without rankmend_gpu_
    labels: tuple[str, ...] = ()  # values, after those of the GPU
    scale: float = 1.0  # to base units
    driver_min: int = 0  # major version
    is_never_zero: bool = False  # cards without it answer 0
    is_signed: bool = False  # 32 bits


_MILLI: Final = 1e-3
_NANO: Final = 1e-9
_KIB: Final = 1024.0
_MEGA: Final = 1e6

# what changes from second to second, and checks read
FAST_CHECKED: Final = (
    Field(82, "memory_temperature_celsius", is_never_zero=True),
    Field(230, "recovery_action_id"),
)
# what changes from second to second, and no check reads
FAST_SHOWN: Final = (
    Field(186, "power_watts", scale=_MILLI),
    Field(83, "energy_joules_total", scale=_MILLI),
    Field(74, "clocks_limited_seconds_total", ("sw_power_cap",), _NANO),
    Field(75, "clocks_limited_seconds_total", ("thermal",), _NANO),
    Field(76, "clocks_limited_seconds_total", ("sync_boost",), _NANO),
    Field(77, "clocks_limited_seconds_total", ("board_limit",), _NANO),
    Field(78, "clocks_limited_seconds_total", ("low_utilization",), _NANO),
    Field(79, "clocks_limited_seconds_total", ("reliability",), _NANO),
    Field(80, "clocks_limited_seconds_total", ("application_clocks",), _NANO),
    Field(81, "clocks_limited_seconds_total", ("base_clocks",), _NANO),
    Field(269, "clocks_limited_seconds_total", ("sw_thermal_slowdown",), _NANO, 580),
    Field(270, "clocks_limited_seconds_total", ("hw_thermal_slowdown",), _NANO, 580),
    Field(271, "clocks_limited_seconds_total", ("hw_power_brake_slowdown",), _NANO, 580),
)


def _ecc_places() -> tuple[Field, ...]:
    """Return fields 7 to 28: volatile, then aggregate, each place corrected and uncorrected."""
    fields = []
    for first, counter in ((7, "volatile"), (18, "aggregate")):
        for number, place in enumerate(("l1", "l2", "dram", "register_file", "texture")):
            for kind, offset in (("corrected", 0), ("uncorrected", 1)):
                labels = (kind, counter, place)
                fields.append(Field(first + 2 * number + offset, "ecc_place_errors_total", labels))
        fields.append(Field(first + 10, "ecc_place_errors_total", ("uncorrected", counter, "cbu")))
    return tuple(fields)


NVSWITCH_LINKS: Final = Field(147, "nvswitch_links")

MEDIUM: Final = (
    Field(1, "ecc_enabled"),
    Field(2, "ecc_pending_enabled"),
    Field(3, "ecc_errors_total", ("corrected", "volatile")),
    Field(4, "ecc_errors_total", ("uncorrected", "volatile")),
    Field(5, "ecc_errors_total", ("corrected", "aggregate")),
    Field(6, "ecc_errors_total", ("uncorrected", "aggregate")),
    *_ecc_places(),
    Field(29, "retired_pages_total", ("single_bit",)),
    Field(30, "retired_pages_total", ("double_bit",)),
    Field(31, "retired_pages_pending"),
    Field(142, "remapped_rows_total", ("corrected",)),
    Field(143, "remapped_rows_total", ("uncorrected",)),
    Field(144, "remapped_rows_pending"),
    Field(145, "remapped_rows_failed"),
    Field(94, "pcie_errors_total", ("replay",)),
    Field(95, "pcie_errors_total", ("replay_rollover",)),
    Field(169, "pcie_errors_total", ("l0_to_recovery",)),
    Field(173, "pcie_errors_total", ("correctable",)),
    Field(174, "pcie_errors_total", ("nak_received",)),
    Field(175, "pcie_errors_total", ("receiver",)),
    Field(176, "pcie_errors_total", ("bad_tlp",)),
    Field(177, "pcie_errors_total", ("nak_sent",)),
    Field(178, "pcie_errors_total", ("bad_dllp",)),
    Field(179, "pcie_errors_total", ("non_fatal",)),
    Field(180, "pcie_errors_total", ("fatal",)),
    Field(181, "pcie_errors_total", ("unsupported_request",)),
    Field(182, "pcie_errors_total", ("lcrc",)),
    Field(183, "pcie_errors_total", ("lane",)),
    Field(197, "pcie_transmit_bytes_total"),
    Field(198, "pcie_receive_bytes_total"),
    NVSWITCH_LINKS,
)

SLOW: Final = (
    Field(187, "power_limit_min_watts", scale=_MILLI),
    Field(188, "power_limit_max_watts", scale=_MILLI),
    Field(189, "power_limit_default_watts", scale=_MILLI),
)

# no metrics of their own
LINK_COUNT: Final = Field(91, "nvlinks")
# the margin at which the GPU slows down: negative, whatever type the driver gives it
SLOWDOWN_TLIMIT: Final = Field(194, "slowdown_tlimit", is_signed=True)

# one of each for every link: the scope is the link's number. Where two fields have one name, a
# generation has one of them: 138 up to Hopper and 202 from Blackwell on.
LINK: Final = (
    Field(164, "nvlink_speed_bytes_per_second", scale=_MEGA),
    Field(138, "nvlink_transmit_bytes_total", scale=_KIB),
    Field(139, "nvlink_receive_bytes_total", scale=_KIB),
    Field(202, "nvlink_transmit_bytes_total"),
    Field(204, "nvlink_receive_bytes_total"),
    Field(161, "nvlink_errors_total", ("replay",)),
    Field(162, "nvlink_errors_total", ("recovery",)),
    Field(163, "nvlink_errors_total", ("crc",)),
    Field(206, "nvlink_errors_total", ("malformed_packet",)),
    Field(207, "nvlink_errors_total", ("buffer_overrun",)),
    Field(208, "nvlink_errors_total", ("receive",)),
    Field(209, "nvlink_errors_total", ("receive_remote",)),
    Field(210, "nvlink_errors_total", ("receive_general",)),
    Field(211, "nvlink_errors_total", ("local_link_integrity",)),
    Field(212, "nvlink_errors_total", ("transmit_discard",)),
    Field(213, "nvlink_errors_total", ("recovery_successful",)),
    Field(214, "nvlink_errors_total", ("recovery_failed",)),
    Field(219, "nvlink_errors_total", ("effective",)),
    Field(221, "nvlink_errors_total", ("symbol",)),
)
# NVML_NVLINK_ERROR_DL_*, for GPUs up to Ampere, which have no field 161 to 163
LINK_ERROR_COUNTERS: Final = ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")

# nvmlClocksEventReason*: bits 0 to 10
CLOCKS_EVENT_REASONS: Final = (
    "gpu_idle",
    "application_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clocks",
    "board_limit",
    "reliability",
)

# of these, what checks of the shipped table read (detectors/data/node_policy.toml)
CHECKED_REASONS: Final = frozenset(
    {
        "hw_slowdown",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
    }
)

# nvmlEventType*: what a GPU is asked to report, by bit
EVENT_TYPES: Final = {
    0x2: "double_bit_ecc",
    0x8: "xid",
    0x200: "single_bit_ecc_storm",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "non_fatal_poison",
    0x2000: "fatal_poison",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
XID: Final = 0x8

# nvmlGpuFabricInfo healthMask: shift of each 2-bit answer (1 yes, 2 no, 0 not supported)
FABRIC_HEALTH: Final = {
    "degraded_bandwidth": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
}


def decode_value(value_type: int, raw: bytes, is_signed: bool = False) -> float | None:
    """Return the number in the 8 bytes of a value, or None if there is none.

    None: a type that nvml.h doesn't have, or all ones in an unsigned number, which is
    NVML_VALUE_NOT_AVAILABLE.
    """
    if not 0 <= value_type < len(_VALUE_TYPES):
        return None
    if is_signed:
        return float(_SIGNED.unpack_from(raw)[0])
    number = _VALUE_TYPES[value_type].unpack(raw)[0]
    if number == _NOT_AVAILABLE.get(value_type):
        return None
    return float(number)
