"""Whether a launcher that joins has the settings of the job, and what differs in the words of `rankmend run`. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from detectors.wording import counted
from rankmend.printable import printable
from recovery.api.wire import Join, ParallelSizes
from recovery.service.http.request_errors import CallConflictError

_TEXT_MAX: Final = 200
# Each launcher has its own.
_OWN: Final = frozenset(
    {
        *("node", "launcher_id", "run", "attributes", "job_id", "budgets_reset_by"),
        *("starts_from_scratch", "claim_taken", "epoch", "begins", "checkpoint_folder"),
        *("takes_checkpoint", "program"),
    }
)
# Must be equal for all launchers of a running job.
FIXED: Final = tuple(name for name in Join.__struct_fields__ if name not in _OWN | {"version"})


def refuse_difference(first: Join, other: Join) -> None:
    """Raise CallConflictError if a launcher's settings differ from those of the job's first launcher."""
    for name in FIXED:
        runs, joins = getattr(first, name), getattr(other, name)
        if runs == joins or (name == "slots" and _has_own_slots(first)):
            continue
        if isinstance(runs, Mapping) and isinstance(joins, Mapping):  # what is equal says nothing
            shared = runs.items() & joins.items()
            runs, joins = (dict(sorted(item.items() - shared)) for item in (runs, joins))
        raise CallConflictError(
            f"the job runs with {_in_words(name, runs)}, and this launcher has {_in_words(name, joins)}: all launchers "
            f"of a job need the same; to change it, end the job first (SIGTERM to a launcher with ranks, or rankmend stop)",
            name,
            getattr(other, name),
        )


def _has_own_slots(join: Join) -> bool:
    """Return whether each node of the job may have its own number of ranks (`JobSettings.has_own_slots`)."""
    return join.shrink_multiple <= 1 and join.parallel is None


def _in_words(name: str, value: Any) -> str:
    say = _WORDS.get(name)
    return printable(say(value) if say is not None else f"{name} {value}")[:_TEXT_MAX]


def _parallel(sizes: ParallelSizes | None) -> str:
    if sizes is None:
        return "no --parallel"
    named = ((name, getattr(sizes, name)) for name in ("tp", "cp", "ep", "dp", "pp"))
    parts = ",".join(f"{name}={size}" for name, size in named if size not in (None, 1))
    sharded = ",".join(sizes.sharded_parts)
    return f"--parallel {parts or 'dp'}" + (f" --sharded-parts {sharded}" if sharded else "")


def _policy(values: Mapping[str, float]) -> str:
    named = ", ".join(f"{name} = {value:g}" for name, value in values.items())
    return f"{named} in [policy]" if named else "no such line in [policy]"


_WORDS: Final[Mapping[str, Callable[[Any], str]]] = {
    "key": lambda key: f"the key {key!r}",
    "name": lambda text: f"the name {text!r}",
    "nodes_min": lambda count: f"at least {counted(count, 'node')} (--nnodes)",
    "nodes_max": lambda count: f"at most {counted(count, 'node')} (--nnodes)",
    "slots": lambda count: f"{counted(count, 'rank')} a node (--nproc-per-node)",
    "spares": lambda count: f"--spares {count}",
    "shrink_multiple": lambda count: f"--shrink-multiple {count}",
    "parallel": _parallel,
    "grace_s": lambda seconds: f"--grace {seconds:g} s",
    "policy": _policy,
    "checkpoint_names": lambda names: (
        " ".join(f"--checkpoint-name {name}" for name in names) or "no --checkpoint-name"
    ),
    "has_checkpoints": lambda has: "--checkpoint-dir" if has else "no --checkpoint-dir",
}
