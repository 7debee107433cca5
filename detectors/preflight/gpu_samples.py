"""Clocks and temperatures of a GPU under load: samples in, the figures of a pre-flight check out. Pure.

Only samples in which the GPU was busy count. Products of large matrices draw the most power and so have the lowest sustained clock; they are two fifths of
the load, so that the lower quartile of the clocks is one of them.
"""

from dataclasses import dataclass, field
from typing import Any, Final

BUSY_MIN: Final = 0.9
SAMPLES_MIN: Final = 4
_QUARTILE: Final = 0.25
# NVML, nvmlClocksEventReasons: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown; HwPowerBrakeSlowdown.
_HEAT: Final = 0x20 | 0x40
_BRAKE: Final = 0x80


@dataclass(frozen=True, slots=True)
class GpuSample:
    busy_ratio: float
    clock_hertz: float | None
    celsius: float | None
    reasons: int  # bits of NVML: what holds the clocks down
    passed_s: float  # since the sample before


@dataclass(slots=True)
class GpuSamples:
    """The samples of one GPU, thinned where there are too many."""

    clocks_hertz: list[float] = field(default_factory=list)
    celsius_max: float | None = None
    heat_s: float = 0.0
    brake_s: float = 0.0
    busy: int = 0

    def add(self, sample: GpuSample, samples_max: int) -> None:
        if sample.busy_ratio < BUSY_MIN:
            return
        self.busy += 1
        if sample.clock_hertz is not None:
            self.clocks_hertz.append(sample.clock_hertz)
            if len(self.clocks_hertz) > samples_max:
                del self.clocks_hertz[::2]
        if sample.celsius is not None:
            self.celsius_max = max(sample.celsius, self.celsius_max or sample.celsius)
        self.heat_s += sample.passed_s if sample.reasons & _HEAT else 0.0
        self.brake_s += sample.passed_s if sample.reasons & _BRAKE else 0.0


def tell_gpu(part: str, model: str, samples: GpuSamples) -> list[dict[str, Any]]:
    """Return the lines about one GPU, as loads print them; none where it was not busy for long enough."""
    if samples.busy < SAMPLES_MIN:
        return [
            {"skip": "gpu_clocks", "part": part, "text": f"busy in {samples.busy} samples only"}
        ]
    lines: list[dict[str, Any]] = []
    if samples.clocks_hertz:
        ordered = sorted(samples.clocks_hertz)
        value = ordered[int(_QUARTILE * (len(ordered) - 1))]
        lines.append({"figure": "gpu_clock_hertz", "value": value, "part": part, "model": model})
    if samples.celsius_max is not None:
        celsius = samples.celsius_max
        lines.append({"figure": "gpu_temperature_celsius", "value": celsius, "part": part, "model": model})  # fmt: skip
    signs = ((heat_sign(part), samples.heat_s), (brake_sign(part), samples.brake_s))
    return lines + [{"sign": name, "value": value} for name, value in signs if value > 0]


def heat_sign(part: str) -> str:
    return f"{part} slowed_by_heat_s"


def brake_sign(part: str) -> str:
    return f"{part} slowed_by_brake_s"
