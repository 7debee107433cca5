"""The scenarios of the matrix. Pure.

A kind is one fault, or a few that belong together, on rank 1 of a job of three. Each kind meets the job in every phase; where
another fault is needed for that (a recovery to be in, or something to happen at the same time), rank 2 is killed.
"""

from dataclasses import dataclass, replace
from typing import Final

from recovery.lab.drill.scenario import DrillFault, DrillHolds, DrillJob, DrillPhase, Scenario

RANKS: Final = 3
_KILL_OTHER: Final = DrillFault("kill", "rank:2", at_step=30)
_BESIDE: Final = frozenset({DrillPhase.RECOVERY, DrillPhase.TOGETHER})


@dataclass(frozen=True, slots=True)
class FaultOfMatrix:
    """A kind of fault, and what it must come to where nothing else happens."""

    name: str
    faults: tuple[DrillFault, ...]
    blamed: tuple[int, ...] = (1,)  # (): it is no incident
    flags: tuple[str, ...] = ()  # of the job
    needs_checkpoint: bool = False
    needs_root: bool = False
    blames_nobody: bool = False  # it is an incident all the same


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind in one phase."""

    kind: FaultOfMatrix
    phase: DrillPhase
    scenario: Scenario

    @property
    def is_incident(self) -> bool:
        return bool(self.kind.blamed) or self.kind.blames_nobody or self.phase in _BESIDE


def _on_rank(fault: str, **options: str | int | float | bool) -> DrillFault:
    return DrillFault(fault, "rank:1", options=options)


_KILL: Final = _on_rank("kill")
KINDS: Final = (
    FaultOfMatrix("killed", (_KILL,)),
    FaultOfMatrix("exits with code 7", (_on_rank("exit-code", code=7),)),
    FaultOfMatrix("raises", (_on_rank("exception"),)),
    FaultOfMatrix("stopped", (_on_rank("stop"),), flags=("--hang-stopped=2s",)),
    FaultOfMatrix("leaves a process behind", (_on_rank("grandchild"), _KILL)),
    FaultOfMatrix("can't write (EFBIG)", (DrillFault("file-limit", "rank:0"),), blamed=(0,)),
    FaultOfMatrix(
        "newest checkpoint torn, then killed",
        (DrillFault("torn-checkpoint", "checkpoint:newest"), _KILL),
        needs_checkpoint=True,
    ),
    FaultOfMatrix(
        "newest checkpoint flipped, then killed",
        (DrillFault("bit-flip", "checkpoint:newest"), _KILL),
        needs_checkpoint=True,
    ),
    FaultOfMatrix("cores loaded", (replace(_on_rank("core-load", workers=2), for_s=5.0),), blamed=()),
    FaultOfMatrix(
        "a fifth of a core",
        (replace(_on_rank("cpu-quota", share=0.2), for_s=5.0),),
        blamed=(),
        needs_root=True,
    ),
    FaultOfMatrix(
        "launcher stopped", (DrillFault("service-stop", "launcher", for_s=3.0),), blamed=()
    ),
    FaultOfMatrix(
        "journal can't be written", (DrillFault("journal-full", "launcher", for_s=5.0),), blamed=()
    ),
)  # fmt: skip


STEPS: Final = 500  # 10 s: an injector starts within them on a busy machine, too


def make_matrix() -> list[Cell]:
    """Return every kind in every phase in which it can be made."""
    return [
        Cell(kind, phase, _scenario(kind, phase))
        for kind in KINDS
        for phase in DrillPhase
        if not (kind.needs_checkpoint and phase is DrillPhase.START)
    ]


def _scenario(kind: FaultOfMatrix, phase: DrillPhase) -> Scenario:
    job = DrillJob(ranks=RANKS, steps=STEPS, flags=kind.flags)
    first, *rest = kind.faults
    match phase:
        case DrillPhase.START:
            job = replace(job, start_s=2.0)
            faults = [replace(first, during=phase), *rest]
        case DrillPhase.STEADY:
            faults = [replace(first, at_step=30), *rest]
        case DrillPhase.CHECKPOINT:
            job = replace(job, checkpoint_every=100, save_s=4.0)
            faults = [replace(first, during=phase, at_step=200), *rest]
        case DrillPhase.RECOVERY:
            job = replace(job, start_s=2.0)
            faults = [_KILL_OTHER, replace(first, during=phase), *rest]
        case DrillPhase.TOGETHER:
            faults = [replace(first, at_step=30), replace(_KILL_OTHER, during=phase), *rest]
    if phase in _BESIDE:
        holds = DrillHolds(blamed_only=(*kind.blamed, 2))
    elif kind.blamed:
        holds = DrillHolds(incidents=1, blamed=(kind.blamed,))
    else:
        holds = DrillHolds(incidents=0)
    return Scenario(f"{kind.name}, {phase.value}", "", job, tuple(faults), holds)
