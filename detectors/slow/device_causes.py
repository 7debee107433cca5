"""Rows of the cause table: GPUs, their memory, PCIe and NVLink."""

from typing import Final

from detectors.finding import Action
from detectors.slow.explanation import (
    IN_ANY,
    IN_COMPUTE,
    LOST_MIN,
    LOST_SOURCE,
    Directness,
    Scope,
    Sign,
    SlowCause,
    SlowSection,
    Statistic,
    clocks_held,
    rate,
)

_DEGREES: Final = "own choice: slots of one chassis differ by several degrees"

_CLOCK: Final = Sign(
    "rankmend_gpu_clock_hertz",
    Statistic.LEVEL,
    LOST_MIN,
    "SM clock",
    "Hz",
    LOST_SOURCE,
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
    LOST_SOURCE,
    is_low=True,
    is_share=True,
)

DEVICE_CAUSES: Final[tuple[SlowCause, ...]] = (
    SlowCause(
        "gpu_thermal_slowdown",
        IN_COMPUTE,
        Scope.GPU,
        Directness.LOST_TIME,
        (clocks_held("sw_thermal_slowdown hw_thermal_slowdown", "clocks held for heat"),),
        "the GPU throttles because of heat",
        Action.DRAIN,
        (_CLOCK, _HOT, _HBM_HOT),
    ),
    SlowCause(
        "gpu_power_brake",
        IN_COMPUTE,
        Scope.GPU,
        Directness.LOST_TIME,
        (
            clocks_held(
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
        IN_COMPUTE,
        Scope.GPU,
        Directness.LOST_TIME,
        (clocks_held("sw_power_cap board_limit reliability", "clocks held by the power limit"),),
        "the power limit holds the GPU's clocks more than its peers'",
        Action.WATCH,
        (_CLOCK, _POWER_LOW),
    ),
    SlowCause(
        "gpu_clock_low",
        IN_COMPUTE,
        Scope.GPU,
        Directness.DEGRADED,
        (_CLOCK,),
        "the GPU runs at lower clocks than its peers",
        Action.DRAIN,
        (_HOT, _HBM_HOT, _POWER_LOW),
    ),
    SlowCause(
        "gpu_memory_errors",
        IN_COMPUTE,
        Scope.GPU,
        Directness.ERRORS,
        (
            rate(
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
        IN_COMPUTE,
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
        IN_COMPUTE,
        Scope.GPU,
        Directness.CIRCUMSTANCE,
        (_HBM_HOT, _HOT),
        "the GPU is hotter than its peers, with no sign of throttling",
        Action.WATCH,
    ),
    SlowCause(
        "pcie_degraded",
        IN_ANY,
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
            rate(
                "rankmend_gpu_pcie_errors_total",
                8 / 60,
                "PCIe replays",
                "DCGM's limit of a 3.0 x16 link, 8 replays a minute; check gpu_pcie_replays has the others",
                where="kind=replay",
            ),
        ),
    ),
    SlowCause(
        "pcie_errors",
        IN_ANY,
        Scope.GPU,
        Directness.ERRORS,
        (
            rate(
                "rankmend_gpu_pcie_errors_total",
                8 / 60,
                "PCIe errors",
                "DCGM's limit of a 3.0 x16 link, 8 replays a minute; check gpu_pcie_replays has the others",
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
            rate(
                "rankmend_gpu_nvlink_errors_total",
                100.0,
                "NVLink checksum errors",
                "DCGM_LIMIT_* in dcgm_structs.h: NVLink CRC 100/s",
                where="kind=crc crc_flit crc_data",
            ),
            rate(
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
)
