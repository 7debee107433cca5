"""One check of what a host has: its outcome, what is lost without it, and the line that fixes it. Pure."""

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

Facts = TypeVar("Facts")


class HostPart(Enum):
    """What a check belongs to; a person can ask for single parts."""

    GPU = "gpu"
    RDMA = "rdma"
    SENSORS = "sensors"
    KERNEL = "kernel"
    LIMITS = "limits"
    CLOCK = "clock"
    SLURM = "slurm"
    CONTAINER = "container"
    AGENT = "agent"
    CONTROLLER = "controller"
    CERTIFICATES = "certificates"
    STORAGE = "storage"
    PYTHON = "python"
    KUBERNETES = "kubernetes"


class HostOutcome(Enum):
    OK = "ok"
    LACKING = "lacking"  # something is lost, the rest works
    BROKEN = "broken"  # it is there, or somebody has set it, and it does not work
    UNKNOWN = "unknown"  # no answer: neither good nor bad
    HIDDEN = "hidden"  # only root, or the service's own user, may see it
    NOT_APPLICABLE = "not_applicable"  # this host needs none


class SourceState(Enum):
    """What a collector of the agent answers."""

    MEASURED = "measured"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class SourceFact:
    state: SourceState
    text: str = ""  # why absent or broken


@dataclass(frozen=True, slots=True)
class HostVerdict:
    outcome: HostOutcome
    found: str
    mend: str = (
        ""  # a line for a shell, with remarks behind "  # "; or a sentence, where no line will do
    )
    as_root: str = ""  # what root would see


@dataclass(frozen=True, slots=True)
class HostCheck(Generic[Facts]):
    """A row of a table."""

    name: str
    part: HostPart
    what: str
    lost: str  # what is lost without it
    judge: Callable[[Facts], HostVerdict]


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    part: HostPart
    what: str
    outcome: HostOutcome
    found: str
    lost: str = ""
    mend: str = ""
    as_root: str = ""


# Exit codes of the command, as those of `check`: warnings 1, critical findings 2.
_CODES: Final = {
    HostOutcome.OK: 0,
    HostOutcome.NOT_APPLICABLE: 0,
    HostOutcome.HIDDEN: 0,  # as ever for this user: a gate that fails by it would never pass
    HostOutcome.LACKING: 1,
    HostOutcome.UNKNOWN: 1,
    HostOutcome.BROKEN: 2,
}


def quoted(word: str) -> str:
    """Return a path or name as one word of a shell: people copy these lines."""
    return shlex.quote(word)


def ok(found: str) -> HostVerdict:
    return HostVerdict(HostOutcome.OK, found)


def lacking(found: str, mend: str, as_root: str = "") -> HostVerdict:
    return HostVerdict(HostOutcome.LACKING, found, mend, as_root)


def broken(found: str, mend: str, as_root: str = "") -> HostVerdict:
    return HostVerdict(HostOutcome.BROKEN, found, mend, as_root)


def unknown(found: str, mend: str = "", as_root: str = "") -> HostVerdict:
    return HostVerdict(HostOutcome.UNKNOWN, found, mend, as_root)


def hidden(found: str, as_root: str) -> HostVerdict:
    return HostVerdict(HostOutcome.HIDDEN, found, as_root=as_root)


def not_applicable(found: str) -> HostVerdict:
    return HostVerdict(HostOutcome.NOT_APPLICABLE, found)


def judge(checks: Iterable[HostCheck[Facts]], facts: Facts) -> list[CheckResult]:
    """Return the result of each check, in the order of the table."""
    return [_result(check, check.judge(facts)) for check in checks]


def all_alike(checks: Iterable[HostCheck[Facts]], verdict: HostVerdict) -> list[CheckResult]:
    """Return one verdict for all checks: their facts could not be read, or belong to another host."""
    return [_result(check, verdict) for check in checks]


def exit_code(results: Iterable[CheckResult]) -> int:
    return max((_CODES[result.outcome] for result in results), default=0)


def _result(check: HostCheck[Facts], verdict: HostVerdict) -> CheckResult:
    is_gap = verdict.outcome not in (HostOutcome.OK, HostOutcome.NOT_APPLICABLE)
    return CheckResult(
        check.name,
        check.part,
        check.what,
        verdict.outcome,
        verdict.found,
        check.lost if is_gap else "",
        verdict.mend if is_gap else "",
        verdict.as_root if is_gap else "",
    )
