"""Huawei Ascend NPUs, from npu-smi. Unproved on hardware: written by its documented output.

Source: ``npu-smi info`` (one table of all chips and their processes) and ``npu-smi info -t ecc -i
        ID``, as the npu-smi references of Atlas training servers show them, 23.0 to 25.5; samples
        with their origin in tests/fixtures/ascend.
Cost:   a process of npu-smi for all chips, and one more an NPU for its ECC counters, each bounded.

npu-smi wants root or the group of the driver (HwHiAiUser). Its MB are 2^20 bytes: 65536 of them are
the 64 GiB of a 910B.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from agent.metrics import Family, Metric, MetricType
from agent.plugins import PluginContext
from agent.root_helper.program_runner import Program, ProgramRunner
from agent.root_helper.questions import ProgramOutcome, ProgramResult
from rankmend.errors import NoSourceError, SourceError

PROGRAM_PATHS: Final = (
    "/usr/local/bin/npu-smi",
    "/usr/local/sbin/npu-smi",
    "/usr/bin/npu-smi",
    "/usr/sbin/npu-smi",
)
CALL_S_MAX: Final = 8.0  # what --once waits for, less a margin
RUN_S_MAX: Final = 25.0  # for all calls of a run: less than the interval
CHIPS_MAX: Final = 128  # a super node shows 16 chips a host
PROCESSES_MAX: Final = 256
_MIB: Final = 1 << 20
_BUS_ID: Final = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_NUMBER: Final = re.compile(r"\d{1,15}(\.\d{1,6})?")
_PAIR: Final = re.compile(r"(\S+?)\s*/\s*(\S+)")
_ID: Final = re.compile(r"\d{1,4}")
_NOTHING: Final = frozenset({"NA", "N/A", "-"})
_ECC_KEY: Final = re.compile(
    r"(HBM|DDR) (Single|Double) Bit "
    r"(Aggregate Total Err Cnt|Isolated Pages Count|Next-Isolated Pages Count)"
)
_ECC_NAMES: Final = {
    "Aggregate Total Err Cnt": "ecc_errors_total",
    "Isolated Pages Count": "isolated_pages",
    "Next-Isolated Pages Count": "isolated_pages_pending",
}
_CHIP: Final = ("npu", "chip", "pci_bus_id")
_PLACE: Final = ("npu", "chip")  # all that the other tables tell

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Chip:
    npu: str
    chip: str
    bus_id: str  # as sysfs writes it
    model: str
    health: str
    power_watts: float | None
    temperature_celsius: float | None
    busy_ratio: float | None
    memory_by_kind: dict[str, tuple[float, float]]  # hbm or ddr: bytes used, bytes there


@dataclass(frozen=True, slots=True)
class NpuProcess:
    npu: str
    chip: str
    pid: str
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class NpuTable:
    version: str
    chips: tuple[Chip, ...]
    processes: tuple[NpuProcess, ...]


@dataclass(frozen=True, slots=True)
class EccCount:
    chip: str
    metric: str
    memory: str  # hbm, ddr
    kind: str  # single, double
    value: float


def parse_info(text: str) -> NpuTable:
    """Return the chips and processes of ``npu-smi info``, or raise SourceError.

    A chip is two rows of three cells: NPU and name, health, power ...; chip, bus id, AI cores ...
    """
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.strip().startswith("|")
    ]
    first = next((row for row in rows if row[0].startswith("npu-smi ")), None)
    if first is None:
        raise SourceError(f"npu-smi shows no table: {text[:200]!r}")
    version = first[0].split()[1]
    columns = _check_header(rows)
    chips: list[Chip] = []
    processes: list[NpuProcess] = []
    above: list[str] | None = None
    for row in rows:
        if len(row) == 3 and _ID.fullmatch(row[0].split(maxsplit=1)[0] if row[0] else ""):
            if above is None:
                above = row
            else:
                chips.append(_parse_chip(above, row, columns))
                above = None
        elif len(row) >= 4 and (process := _parse_process(row)) is not None:
            processes.append(process)
    if above is not None:
        raise SourceError(f"npu-smi: half a chip: {above}")
    if len(chips) > CHIPS_MAX:
        raise SourceError(f"npu-smi shows {len(chips)} chips, at most {CHIPS_MAX}")
    if len({(chip.npu, chip.chip) for chip in chips}) != len(chips):
        raise SourceError("npu-smi shows one chip twice")
    return NpuTable(version, tuple(chips), tuple(processes[:PROCESSES_MAX]))


def _check_header(rows: list[list[str]]) -> tuple[str, ...]:
    """Return the kinds of memory in the order of the second header's columns."""
    titles = [row[2].split() for row in rows if len(row) == 3]
    upper = next((title for title in titles if title[:1] == ["Power(W)"]), [])
    lower = next((title for title in titles if title[:1] == ["AICore(%)"]), [])
    if upper[:2] != ["Power(W)", "Temp(C)"] or not lower:
        raise SourceError(f"npu-smi: unknown columns {titles[:2]}")
    names = {"Memory-Usage(MB)": "ddr", "HBM-Usage(MB)": "hbm"}
    unknown = [title for title in lower[1:] if title not in names]
    if unknown:
        raise SourceError(f"npu-smi: unknown columns {unknown}")
    return tuple(names[title] for title in lower[1:])


def _parse_chip(upper: list[str], lower: list[str], columns: tuple[str, ...]) -> Chip:
    where = f"npu-smi: {upper} {lower}"
    if not _BUS_ID.fullmatch(lower[1]):
        raise SourceError(f"{where}: no bus id")
    npu, _space, model = upper[0].partition(" ")
    figures = upper[2].split()
    pairs = _PAIR.findall(lower[2].partition(" ")[2])
    if len(figures) < 2 or len(pairs) != len(columns):
        raise SourceError(f"{where}: missing figures")
    memory: dict[str, tuple[float, float]] = {}
    for kind, (used_text, size_text) in zip(columns, pairs, strict=True):
        used, size = _number(used_text, where), _number(size_text, where)
        if used is not None and size:  # 0 / 0: a kind of memory that the chip has not
            memory[kind] = (used * _MIB, size * _MIB)
    busy_percent = _number(lower[2].split()[0], where)
    return Chip(
        npu=npu,
        chip=lower[0].split()[0],
        bus_id=lower[1].lower(),
        model=model.strip(),
        health=upper[1],
        power_watts=_number(figures[0], where),
        temperature_celsius=_number(figures[1], where),
        busy_ratio=None if busy_percent is None else busy_percent / 100,
        memory_by_kind=memory,
    )


def _parse_process(row: list[str]) -> NpuProcess | None:
    """Return a process, or None for the header and for rows of another form."""
    place = row[0].split()
    if len(place) != 2 or not all(map(_ID.fullmatch, place)) or not row[1].isdecimal():
        return None
    if not row[1].isascii() or not _NUMBER.fullmatch(row[3]):
        return None
    name = "".join(c if c.isprintable() else "?" for c in row[2])
    return NpuProcess(place[0], place[1], row[1], name, round(float(row[3]) * _MIB))


def parse_ecc(text: str) -> tuple[EccCount, ...]:
    """Return the counters of ``npu-smi info -t ecc``: lines ``key : value``, a block a chip.

    The chip's number ends its block; newer versions, with one chip an NPU, leave it out.
    """
    counts: list[EccCount] = []
    block: list[tuple[str, str, str, float]] = []

    def close(chip: str) -> None:
        counts.extend(EccCount(chip, *item) for item in block)
        block.clear()

    for line in text.splitlines():
        key, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            continue
        if key == "Chip ID":
            if not _ID.fullmatch(value):
                raise SourceError(f"npu-smi: not a chip: {line!r}")
            close(value)
        elif found := _ECC_KEY.fullmatch(key):
            number = _number(value, line)
            if number is not None:
                memory, kind, what = found.groups()
                block.append((_ECC_NAMES[what], memory.lower(), kind.lower(), number))
    if block and counts:
        raise SourceError("npu-smi: ECC counters without a chip")
    close("0")
    if len({(count.chip, count.metric, count.memory, count.kind) for count in counts}) != len(
        counts
    ):
        raise SourceError("npu-smi: one ECC counter twice")
    return tuple(counts)


def _number(text: str, where: str) -> float | None:
    if text in _NOTHING:
        return None
    if not _NUMBER.fullmatch(text):
        raise SourceError(f"{where}: {text!r} is not a number")
    return float(text)


def _gauge(name: str, unit: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(f"rankmend_ascend_{name}", MetricType.GAUGE, unit, labels, text)


class AscendCollector:
    """The plugin `ascend`."""

    name = "ascend"
    interval_s = 30.0
    is_proved_on_hardware = False
    families = (
        _gauge("info", "", (*_CHIP, "model", "npu_smi"), "What the chip is; always 1."),
        _gauge("healthy", "", _CHIP, "1 when npu-smi calls the chip's health OK, else 0."),
        _gauge(
            "health_info",
            "",
            (*_CHIP, "health"),
            "The chip's health as npu-smi reports it; always 1.",
        ),
        _gauge(
            "power_watts", "watts", _CHIP, "Power; for an NPU with two chips, only on the first."
        ),
        _gauge("temperature_celsius", "celsius", _CHIP, "Temperature of the chip."),
        _gauge("busy_ratio", "ratio", _CHIP, "Share of time that the AI cores were in use."),
        _gauge("memory_size_bytes", "bytes", (*_CHIP, "memory"), "Memory, hbm or ddr."),
        _gauge("memory_used_bytes", "bytes", (*_CHIP, "memory"), "Memory in use, hbm or ddr."),
        _gauge("ecc_success", "", ("npu",), "1 when the ECC counters could be read, 0 when not."),
        Family(
            "rankmend_ascend_ecc_errors_total",
            MetricType.COUNTER,
            "",
            (*_PLACE, "memory", "kind"),
            "Memory errors of one bit (single) and of several bits (double) in the chip's life.",
        ),
        _gauge("isolated_pages", "", (*_PLACE, "memory", "kind"), "Memory pages taken out of use."),
        _gauge(
            "isolated_pages_pending",
            "",
            (*_PLACE, "memory", "kind"),
            "Memory pages that the next reset takes out of use.",
        ),
        _gauge(
            "process_memory_bytes",
            "bytes",
            (*_PLACE, "pid", "process"),
            "Memory that a process has on a chip.",
        ),
    )

    def __init__(
        self,
        context: PluginContext,
        run: Callable[[Program, float], ProgramResult] | None = None,
        paths: tuple[str, ...] = PROGRAM_PATHS,
    ) -> None:
        if context.settings:
            raise SourceError(f"[plugins.ascend] has no {', '.join(context.settings)}")
        if not context.is_live:
            raise NoSourceError("npu-smi is not run with a recorded tree")
        self._clock = context.clock
        self._run = run or ProgramRunner(context.clock).run
        self._paths = paths

    def collect(self) -> Iterator[Metric]:
        deadline_s = self._clock.now_s() + RUN_S_MAX
        table = parse_info(self._ask((), deadline_s))
        if not table.chips:
            raise NoSourceError("npu-smi shows no NPU")
        for chip in table.chips:
            yield from _describe(chip, table.version)
        memory_bytes: Counter[Labels] = Counter()
        for process in table.processes:  # one may stand there several times
            place = (("npu", process.npu), ("chip", process.chip))
            about = (("pid", process.pid), ("process", process.name))
            key = (*place, *about)
            memory_bytes[key] += process.memory_bytes
        for labels, used_bytes in memory_bytes.items():
            yield Metric("rankmend_ascend_process_memory_bytes", used_bytes, labels)
        for npu in dict.fromkeys(chip.npu for chip in table.chips):
            yield from self._ecc(npu, deadline_s)

    def _ecc(self, npu: str, deadline_s: float) -> Iterator[Metric]:
        labels = (("npu", npu),)
        try:
            text = self._ask(("-t", "ecc", "-i", npu), deadline_s)
            counts = parse_ecc(text)
        except SourceError:
            yield Metric("rankmend_ascend_ecc_success", 0, labels)
            return
        if not counts and "not support" in text:  # this chip does not count: absent
            return
        yield Metric("rankmend_ascend_ecc_success", int(bool(counts)), labels)
        for count in counts:
            about = (("chip", count.chip), ("memory", count.memory), ("kind", count.kind))
            yield Metric(f"rankmend_ascend_{count.metric}", count.value, (*labels, *about))

    def _ask(self, arguments: tuple[str, ...], deadline_s: float) -> str:
        program = Program("npu-smi", self._paths, ("info", *arguments), CALL_S_MAX)
        result = self._run(program, deadline_s)
        if result.outcome is ProgramOutcome.ABSENT:
            raise NoSourceError("npu-smi is not installed")
        if result.outcome is not ProgramOutcome.ANSWERED:
            raise SourceError(f"npu-smi {' '.join(program.arguments)}: {result.error}")
        if result.exit_code != 0 and "not support" not in result.output:
            said = " ".join((result.output or result.error).split())[:200]
            raise SourceError(f"npu-smi {' '.join(program.arguments)}: {result.exit_code}: {said}")
        return result.output


def _describe(chip: Chip, version: str) -> Iterator[Metric]:
    labels = (("npu", chip.npu), ("chip", chip.chip), ("pci_bus_id", chip.bus_id))
    about = (("model", chip.model), ("npu_smi", version))
    yield Metric("rankmend_ascend_info", 1, (*labels, *about))
    yield Metric("rankmend_ascend_healthy", int(chip.health == "OK"), labels)
    yield Metric("rankmend_ascend_health_info", 1, (*labels, ("health", chip.health)))
    for name, value in (
        ("power_watts", chip.power_watts),
        ("temperature_celsius", chip.temperature_celsius),
        ("busy_ratio", chip.busy_ratio),
    ):
        if value is not None:
            yield Metric(f"rankmend_ascend_{name}", value, labels)
    for kind, (used_bytes, size_bytes) in chip.memory_by_kind.items():
        of_kind = (*labels, ("memory", kind))
        yield Metric("rankmend_ascend_memory_used_bytes", used_bytes, of_kind)
        yield Metric("rankmend_ascend_memory_size_bytes", size_bytes, of_kind)
