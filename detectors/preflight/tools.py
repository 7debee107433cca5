"""NVIDIA's own tools in a pre-flight check: which are run at a level, and what their output says of the node. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.formats.dcgm_diag import DiagStatus, parse_dcgm_diag
from detectors.formats.nccl_tests import parse_nccl_tests
from detectors.formats.nvbandwidth import parse_nvbandwidth
from detectors.preflight.answers import StepAnswers
from detectors.preflight.figures import LoadFigure
from detectors.preflight.levels import FlightLevel
from detectors.preflight.verdicts import BitCheck, CheckStanding, CheckVerdict
from rankmend.errors import SourceError

DIAG_FIELD: Final = "run the vendor's field diagnosis; replace the device if it fails again"
# dcgm_errors.h: what DCGM itself calls for. A reset ends the use of a device as an isolation does.
_ISOLATE, _RESET = 2, 6


class NvidiaTool(Enum):
    """A program that may be on the node; the value is its name."""

    DCGM = "dcgmi"
    NVBANDWIDTH = "nvbandwidth"
    NCCL_TESTS = "all_reduce_perf"


@dataclass(frozen=True, slots=True)
class ToolRun:
    words: tuple[str, ...]
    limit_s: float


# `dcgmi diag -r 1` takes seconds, 2 some 2 minutes, 3 some 15 to 30 (DCGM user guide, "DCGM diagnostics").
_RUNS: Final[Mapping[FlightLevel, Mapping[NvidiaTool, ToolRun]]] = {
    FlightLevel.QUICK: {},
    FlightLevel.JOB: {
        NvidiaTool.DCGM: ToolRun(("diag", "-r", "1", "-j"), 30.0),
        NvidiaTool.NCCL_TESTS: ToolRun(("-b", "1G", "-e", "1G", "-n", "10", "-c", "1"), 20.0),
    },
    FlightLevel.BURN_IN: {
        NvidiaTool.DCGM: ToolRun(("diag", "-r", "3", "-j"), 3000.0),
        NvidiaTool.NVBANDWIDTH: ToolRun(("-j",), 900.0),
        NvidiaTool.NCCL_TESTS: ToolRun(("-b", "8", "-e", "4G", "-f", "2", "-c", "1"), 600.0),
    },
}


def runs_of(
    level: FlightLevel, places: Mapping[NvidiaTool, str], gpus: int
) -> dict[NvidiaTool, ToolRun]:
    """Return what is run of the tools that are there; ``places``: the path of each."""
    runs = {}
    for tool, run in _RUNS[level].items():
        if tool in places:
            more = ("-g", str(gpus)) if tool is NvidiaTool.NCCL_TESTS else ()
            runs[tool] = ToolRun((places[tool], *run.words, *more), run.limit_s)
    return runs


def read_tool(tool: NvidiaTool, output: str, gpu_model: str) -> StepAnswers:
    """Return what a tool's output says. Output that can't be read is silence, never a fault."""
    found = StepAnswers()
    try:
        _READERS[tool](output, gpu_model, found)
    except SourceError as error:
        silent = CheckVerdict(tool.value, tool.value, CheckStanding.SILENT, str(error))
        found.verdicts.append(silent)
    return found


def _read_dcgm(output: str, _model: str, found: StepAnswers) -> None:
    results = parse_dcgm_diag(output)
    bad = [result for result in results if result.status is DiagStatus.FAIL]
    for result in bad:
        text = f"{result.test}: {'; '.join(result.texts) or 'failed'}"[:300]
        action = "replace" if {_ISOLATE, _RESET} & set(result.severities) else "drain"
        failed = CheckVerdict(
            "dcgm_diag", result.device, CheckStanding.FAILED, text, action, DIAG_FIELD
        )
        found.verdicts.append(failed)
    if not bad:
        ran = sum(result.status is not DiagStatus.SKIP for result in results)
        standing = CheckStanding.PASSED if ran else CheckStanding.SKIPPED
        text = f"{ran} results, {len(results) - ran} skipped"
        found.verdicts.append(CheckVerdict("dcgm_diag", "node", standing, text))


def _read_bandwidth(output: str, model: str, found: StepAnswers) -> None:
    results = parse_nvbandwidth(output)
    for cell in results.cells:
        part = (
            f"cuda:{cell.column}"
            if cell.row == 0 and "host" in cell.test
            else f"cuda:{cell.row}-cuda:{cell.column}"
        )
        found.figures.append(
            LoadFigure(
                "tool_bandwidth_bytes_per_s", cell.bytes_per_s, part, f"{model}, {cell.test}"
            )
        )
    for text in results.failed:
        found.verdicts.append(CheckVerdict("nvbandwidth", "node", CheckStanding.SILENT, text))


def _read_collective(output: str, model: str, found: StepAnswers) -> None:
    results = parse_nccl_tests(output)
    text = "elements of all_reduce that were wrong"
    found.bits.append(BitCheck("all_reduce_bits", "node", results.wrong, text))
    name = f"{model}, all_reduce"
    rate = results.best_bus_bytes_per_s
    found.figures.append(LoadFigure("tool_bandwidth_bytes_per_s", rate, "nccl", name))


_READERS: Final = {
    NvidiaTool.DCGM: _read_dcgm,
    NvidiaTool.NVBANDWIDTH: _read_bandwidth,
    NvidiaTool.NCCL_TESTS: _read_collective,
}
