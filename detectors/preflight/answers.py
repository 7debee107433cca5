"""What the process of a step told, line by line, and what its end means. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from typing import Any, Final

from detectors.preflight.figures import KINDS, LoadFigure
from detectors.preflight.verdicts import BitCheck, CheckStanding, CheckVerdict

TEXT_MAX: Final = 300
# Why a load could not run at all, which says nothing of the hardware: the names of Python's and PyTorch's exceptions.
NOT_RUNNABLE: Final = frozenset(
    {"ModuleNotFoundError", "ImportError", "NoArraysError", "OutOfMemoryError", "MemoryError"}
)


class StepEndKind(Enum):
    """How the process of a step ended."""

    ENDED = "ended"
    KILLED = "killed"  # at its deadline
    HUNG = "hung"


@dataclass(slots=True)
class StepAnswers:
    """Everything that one step told."""

    figures: list[LoadFigure] = field(default_factory=list)
    bits: list[BitCheck] = field(default_factory=list)
    signs: dict[str, float] = field(default_factory=dict)
    verdicts: list[CheckVerdict] = field(default_factory=list)  # of loads without an answer


def read_answers(lines: Iterable[Mapping[str, Any]], host_model: str) -> StepAnswers:
    """Return what the lines of a process say; a line that is none of ours is left out.

    ``host_model``: what the figures of processors and memory are also bound to.
    """
    found = StepAnswers()
    models: dict[str, str] = {}
    for line in lines:
        part = _text(line.get("part"))
        if "model" in line and "figure" not in line:
            models[part] = _text(line["model"])
        elif "figure" in line:
            _read_figure(
                line, part, _text(line.get("model")) or models.get(part, ""), host_model, found
            )
        elif "check" in line:
            bad = line.get("bad")
            if isinstance(bad, int):
                kind, digest = _text(line.get("kind")), _text(line.get("digest"))
                said = _text(line.get("text"))
                found.bits.append(BitCheck(_text(line["check"]), part, bad, said, kind, digest))
        elif "sign" in line and _is_number(line.get("value")):
            found.signs[_text(line["sign"])] = float(line["value"])
        elif "verdict" in line:
            found.verdicts += _read_verdict(line)
        elif "skip" in line:
            skipped = CheckVerdict(
                _text(line["skip"]), part, CheckStanding.SKIPPED, _text(line.get("text"))
            )
            found.verdicts.append(skipped)
        elif "error" in line:
            found.verdicts.append(_read_error(line))
    return found


def _read_figure(
    line: Mapping[str, Any], part: str, model: str, host_model: str, found: StepAnswers
) -> None:
    name = _text(line["figure"])
    if name not in KINDS or not _is_number(line.get("value")):
        return
    if not name.startswith("gpu_"):
        model = f"{host_model}, {model}"
    found.figures.append(LoadFigure(name, float(line["value"]), part, model))


def _read_verdict(line: Mapping[str, Any]) -> list[CheckVerdict]:
    """Return what a probe has judged by itself."""
    try:
        standing = CheckStanding(line["verdict"])
    except ValueError:
        return []
    action = "drain" if standing is CheckStanding.FAILED else "none"
    name, part = _text(line.get("name")), _text(line.get("part"))
    return [
        CheckVerdict(
            name, part, standing, _text(line.get("text")), action, _text(line.get("advice"))
        )
    ]


def _read_error(line: Mapping[str, Any]) -> CheckVerdict:
    kind = _text(line.get("type"))
    standing = CheckStanding.SKIPPED if kind in NOT_RUNNABLE else CheckStanding.SILENT
    reason = f"{kind}: {_text(line['error'])}"
    return CheckVerdict(_text(line.get("load")), _text(line.get("part")), standing, reason)


def judge_end(
    step: str,
    kind: StepEndKind,
    status: int | None,
    lines: Iterable[Mapping[str, Any]],
    waits_in: str,
    errors: str,
    limit_s: float,
) -> CheckVerdict | None:
    """Return a verdict for a step that did not end well, or None."""
    if kind is StepEndKind.ENDED and status == 0:
        return None
    doing = _unfinished(lines) or "starting"
    if kind is StepEndKind.HUNG:
        text = f"{doing} can't be killed: it waits in the kernel ({waits_in})"
        advice = "look at the kernel log for what the driver waits for; a reboot ends it"
        return CheckVerdict(step, step, CheckStanding.HUNG, text, "reboot", advice)
    if kind is StepEndKind.KILLED:
        text = f"{doing} gave no answer within {limit_s:.0f} s"
        return CheckVerdict(step, step, CheckStanding.SILENT, text)
    how = f"signal {-status}" if status is not None and status < 0 else f"exit code {status}"
    last = errors.strip().splitlines()[-1:]
    message = f": {_text(last[0])}" if last else ""
    return CheckVerdict(step, step, CheckStanding.SILENT, f"{doing} ended with {how}{message}")


def _unfinished(lines: Iterable[Mapping[str, Any]]) -> str:
    doing = ""
    for line in lines:
        if "begin" in line:
            named = (_text(line["begin"]), _text(line.get("part")))
            doing = " ".join(dict.fromkeys(filter(None, named)))  # memory is a load and a part
        elif "end" in line:
            doing = ""
    return doing


def _text(value: object) -> str:
    return "" if value is None else str(value)[:TEXT_MAX]


def _is_number(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and isfinite(float(value)) and float(value) >= 0  # type: ignore[arg-type]
