"""What a pre-flight check says of a node: one verdict for each thing looked at, and one for the node. Pure.

Three outcomes are never merged: a check that failed accuses the node; one without an answer, or that hangs, says that
nobody knows; one that abstains had too little to compare with, and says how little.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final

from detectors.preflight.baseline import Baseline, Expectation, TooFewSamples, expect, is_worse
from detectors.preflight.figures import KINDS, LoadFigure, say
from detectors.preflight.gpu_samples import brake_sign, heat_sign
from detectors.wording import counted

PEERS_MIN: Final = 3  # other parts of the same node and model: with two, neither is the odd one
PEER_SHARE_MIN: Final = (
    0.1  # a part may be this much worse than its neighbours whatever the kind says
)
FIGURE_PEERS: Final = ("cuda:",)  # parts of which a node has several that are alike


class CheckStanding(Enum):
    """How one check ended, the worst first."""

    FAILED = "failed"
    HUNG = "hung"  # its process can't be killed: it waits in the kernel
    SILENT = "silent"  # no answer before its deadline, or it broke
    SKIPPED = "skipped"  # could not be done here: no space, no such part
    ABSTAINED = "abstained"  # measured, and too little to compare with
    PASSED = "passed"


class FlightOutcome(Enum):
    """What is said of the node."""

    FAILED = "failed"
    UNANSWERED = "unanswered"  # nothing failed, and some checks gave no answer
    PASSED = "passed"
    STOPPED = "stopped"  # a signal ended the check
    NOT_BEGUN = "not_begun"  # too many nodes are checked at once


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """One line of the result."""

    name: str
    part: str
    standing: CheckStanding
    reason: str
    action: str = "none"  # value of detectors.finding.Action
    advice: str = ""
    value: float | None = None
    baseline: float | None = None
    limit: float | None = None
    samples: int = 0
    nodes: int = 0
    unit: str = ""


@dataclass(frozen=True, slots=True)
class BitCheck:
    """How many results, words or blocks were wrong."""

    name: str
    part: str
    bad: int
    text: str
    kind: str = ""  # data type
    digest: str = ""  # of what must be equal on every device


ADVICE_OF_BITS: Final = {
    "cpu_bits": "the processor computes wrongly: take the node out and have the CPU replaced",
    "gemm_bits": "the device computes wrongly: take it out, run the vendor's field diagnosis, replace it",
    "gemm_repeats": "the device computes wrongly: take it out, run the vendor's field diagnosis, replace it",
    "memory_bits": "the memory loses data: take the node out, test the memory, replace the module or GPU",
    "transfer_bits": "the link between host and GPU loses data: reseat the card, look at AER, replace it",
    "disk_bits": "the storage returns other data than was written: stop using it, and check its past data",
    "disk_io": "the storage refuses reads or writes: look at the kernel log and at the disk",
}


def judge_bits(checks: Iterable[BitCheck]) -> list[CheckVerdict]:
    """Return a verdict for each comparison, and one for devices whose results differ from the others'."""
    checks = list(checks)
    found = [_judge_bit(check) for check in checks]
    by_name: dict[str, dict[str, list[str]]] = {}
    for check in checks:
        if check.digest:
            by_name.setdefault(check.name, {}).setdefault(check.digest, []).append(
                " ".join(filter(None, (check.part, check.kind)))
            )
    for name, parts_by_digest in by_name.items():
        if len(parts_by_digest) > 1:
            found += _judge_digests(name, parts_by_digest)
    return found


def _judge_bit(check: BitCheck) -> CheckVerdict:
    name = f"{check.name} {check.kind}".strip()
    if not check.bad:
        return CheckVerdict(name, check.part, CheckStanding.PASSED, f"0 {check.text}")
    advice = ADVICE_OF_BITS.get(check.name, "take the node out")
    return CheckVerdict(
        name, check.part, CheckStanding.FAILED, f"{check.bad} {check.text}", "replace", advice
    )


def _judge_digests(name: str, parts_by_digest: Mapping[str, Sequence[str]]) -> list[CheckVerdict]:
    most = max(parts_by_digest.values(), key=len)
    is_clear = sum(len(parts) == len(most) for parts in parts_by_digest.values()) == 1
    if not is_clear:
        parts = ", ".join(sorted(part for some in parts_by_digest.values() for part in some))
        text = f"results differ between {parts}, and no majority says which is right"
        return [
            CheckVerdict(name, parts, CheckStanding.FAILED, text, "replace", ADVICE_OF_BITS[name])
        ]
    return [
        CheckVerdict(
            name,
            part,
            CheckStanding.FAILED,
            f"the same product has other bits than on {counted(len(most), 'other')}",
            "replace",
            ADVICE_OF_BITS[name],
        )
        for parts in parts_by_digest.values()
        if parts is not most
        for part in parts
    ]


def judge_figures(
    figures: Sequence[LoadFigure], node: str, baseline: Baseline, signs: Mapping[str, float]
) -> list[CheckVerdict]:
    """Return a verdict for each figure: by the baseline of its model, and by the like parts of the node."""
    verdicts = []
    for figure in figures:
        by_fleet = _by_baseline(figure, node, baseline, signs)
        by_peers = _by_peers(figure, figures, signs)
        worse = by_peers is not None and by_fleet.standing is not CheckStanding.FAILED
        verdicts.append(by_peers if by_peers is not None and worse else by_fleet)
    return verdicts


def _by_baseline(
    figure: LoadFigure, node: str, baseline: Baseline, signs: Mapping[str, float]
) -> CheckVerdict:
    kind = KINDS[figure.name]
    expected = expect(baseline, node, figure, kind)
    value = say(figure.value, kind.unit)
    if isinstance(expected, TooFewSamples):
        own = counted(expected.own_samples, "sample")
        text = f"{value}; {counted(expected.nodes, 'other node')} and {own} of its own: too few to judge"
        return CheckVerdict(
            figure.name,
            figure.part,
            CheckStanding.ABSTAINED,
            text,
            value=figure.value,
            unit=kind.unit.value,
        )
    if expected.is_unsteady:
        text = f"{value}; {_say_expected(expected, figure)}: its samples differ too much to judge"
        return CheckVerdict(
            figure.name,
            figure.part,
            CheckStanding.ABSTAINED,
            text,
            value=figure.value,
            unit=kind.unit.value,
        )
    is_bad = is_worse(kind, figure.value, expected.limit)
    text = f"{value}; {_say_expected(expected, figure)}"
    because = _because(figure, signs) if is_bad else ""
    return CheckVerdict(
        figure.name,
        figure.part,
        CheckStanding.FAILED if is_bad else CheckStanding.PASSED,
        text + because,
        kind.action if is_bad else "none",
        kind.advice if is_bad else "",
        figure.value,
        expected.centre,
        expected.limit,
        expected.samples,
        expected.nodes,
        kind.unit.value,
    )


def _say_expected(expected: Expectation, figure: LoadFigure) -> str:
    unit = KINDS[figure.name].unit
    whose = (
        f"its own past ({counted(expected.samples, 'sample')})"
        if expected.is_own
        else f"{counted(expected.nodes, 'node')} ({counted(expected.samples, 'sample')})"
    )
    return f"{whose}: median {say(expected.centre, unit)}, limit {say(expected.limit, unit)}"


def _because(figure: LoadFigure, signs: Mapping[str, float]) -> str:
    said = (
        _held_down(figure.part, signs)
        if figure.part.startswith(FIGURE_PEERS)
        else _held_back(figure, signs)
    )
    return f"; {' and '.join(said)}" if said else ""


def _held_down(part: str, signs: Mapping[str, float]) -> list[str]:
    """Return what held down the clocks of a GPU, by its own word."""
    found = (("heat", heat_sign(part)), ("the power brake", brake_sign(part)))
    return [
        f"{what} held its clocks down for {signs[name]:.1f} s"
        for what, name in found
        if signs.get(name, 0) > 0.1
    ]


def _held_back(figure: LoadFigure, signs: Mapping[str, float]) -> list[str]:
    if not figure.part.startswith(("cpu", "memory")):
        return []
    said = []
    if signs.get("cpu_throttled_s", 0) > 0.1:
        said.append(f"a CPU quota held it back for {signs['cpu_throttled_s']:.1f} s")
    if signs.get("cpu_waited_s", 0) > 0.1:
        said.append(f"other programs had its processors for {signs['cpu_waited_s']:.1f} s")
    if signs.get("cpu_stolen_s", 0) > 0.1:
        said.append(f"the host of this virtual machine took {signs['cpu_stolen_s']:.1f} s")
    return said


def _by_peers(
    figure: LoadFigure, figures: Sequence[LoadFigure], signs: Mapping[str, float]
) -> CheckVerdict | None:
    """Return a failed verdict if a part is worse than the like parts beside it, else None."""
    if not figure.part.startswith(FIGURE_PEERS):
        return None
    kind = KINDS[figure.name]
    peers = [
        other.value
        for other in figures
        if other.name == figure.name and other.model == figure.model and other.part != figure.part
    ]
    if len(peers) < PEERS_MIN:
        return None
    centre = median(peers)
    allowed = max(kind.share, PEER_SHARE_MIN) * abs(centre)
    limit = centre - allowed if kind.is_more_better else centre + allowed
    if not is_worse(kind, figure.value, limit):
        return None
    text = (
        f"{say(figure.value, kind.unit)}; {counted(len(peers), 'like part')} of this node: "
        f"median {say(centre, kind.unit)}, limit {say(limit, kind.unit)}"
    )
    return CheckVerdict(
        figure.name,
        figure.part,
        CheckStanding.FAILED,
        text + _because(figure, signs),
        kind.action,
        kind.advice,
        figure.value,
        centre,
        limit,
        len(peers),
        1,
        kind.unit.value,
    )


def outcome_of(verdicts: Iterable[CheckVerdict]) -> FlightOutcome:
    """Return what all verdicts together say of the node."""
    standings = {verdict.standing for verdict in verdicts}
    if CheckStanding.FAILED in standings:
        return FlightOutcome.FAILED
    if standings & {CheckStanding.HUNG, CheckStanding.SILENT}:
        return FlightOutcome.UNANSWERED
    return FlightOutcome.PASSED


def in_order(verdicts: Iterable[CheckVerdict]) -> list[CheckVerdict]:
    """Return the worst first."""
    rank = {standing: number for number, standing in enumerate(CheckStanding)}
    return sorted(verdicts, key=lambda verdict: rank[verdict.standing])
