"""`rankmend check node --for prolog|epilog|health`: the check as slurmd runs it.

The rule of all three: only a named fault of this node may drain it. A typo in the configuration, a defect of rankmend, a
check that hangs or a slurmctld that does not answer are reported, and the exit code is 0: each of them would otherwise
drain one node after the other.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.action_log import ACTION_LOG, append_action
from rankmend.cli.options import print_json
from rankmend.cli.output import echo
from rankmend.errors import RankmendError, StorageError
from rankmend.node import node_name

if TYPE_CHECKING:
    from agent.slurm.drain import DrainResult
    from agent.slurm.fitness import Fitness, Use

SLOT_FOLDER: Final = Path("/run/rankmend-checks")
SLURM_S: Final = 1.0  # of the timeout, kept for Slurm's commands: each takes some 10 ms
SLURM_SHARE: Final = 0.5  # of the timeout: what they may take where the check was quick


class NodeCommand(click.Command):
    """Has a wrong option in a prolog's line be reported, and drain no node."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        words = list(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if not is_for_slurm(words):
                raise
            echo(f"rankmend: {error.format_message()}; node not checked", err=True)
            raise SystemExit(0) from None


def is_for_slurm(words: list[str]) -> bool:
    """Return whether `--for` names anything but a person, also what does not exist."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    values = [following for word, following in pairs if word == "--for"]
    values += [word.partition("=")[2] for word in words if word.startswith("--for=")]
    return any(value != "person" for value in values)


def check_for_slurm(
    use: "Use",
    make_page: Callable[[], dict[str, Any]],
    *,
    as_json: bool,
    timeout_s: float,
    share_max: float,
    is_hang_obstacle: bool,
    log: Path | None,
) -> None:
    """Check this node, drain it if it is unfit, and exit as slurmd expects."""
    from agent.slurm.drain import DrainOutcome, DrainResult
    from agent.slurm.fitness import Fitness, exit_code_for, judge_fitness, no_answer
    from rankmend.child_call import ChildSilentError

    until_s = time.monotonic() + timeout_s
    page, fitness, error = None, Fitness(), ""
    result = DrainResult(DrainOutcome.NOT_NEEDED)
    try:
        page = _fetch_in_child(make_page, timeout_s - SLURM_S)
        fitness = judge_fitness(page, is_hang_obstacle=is_hang_obstacle)
    except ChildSilentError as silence:
        whole = "the whole check"
        error = str(silence)
        fitness = Fitness((no_answer([whole]),) if is_hang_obstacle else (), unanswered=(whole,))
    except (RankmendError, OSError) as failure:
        error = str(failure)
    try:
        if not fitness.is_fit:
            slurm_until_s = min(until_s, time.monotonic() + timeout_s * SLURM_SHARE)
            result = _drain(use, fitness, share_max, slurm_until_s, log)
    except Exception as defect:  # noqa: BLE001 - a defect of ours must not drain nodes
        error = f"internal error: {type(defect).__name__}: {defect}"
        fitness = Fitness()
    is_held = not fitness.is_fit and result.outcome is not DrainOutcome.BRAKED
    code = exit_code_for(use, is_fit=not is_held)
    _print_result(fitness, result, error)
    if as_json:
        print_json(
            {
                **(page or {}),
                "for": use.value,
                "exit_code": code,
                "obstacles": list(fitness.obstacles),
                "unanswered": list(fitness.unanswered),
                "error": error,
                "drain": result,
            }
        )
    sys.exit(code)


def _fetch_in_child(make_page: Callable[[], dict[str, Any]], timeout_s: float) -> dict[str, Any]:
    from rankmend.child_call import call_in_child

    page: dict[str, Any] = call_in_child(
        make_page, timeout_s, SLOT_FOLDER if os.geteuid() == 0 else None
    )
    return page


def _drain(
    use: "Use", fitness: "Fitness", share_max: float, until_s: float, log: Path | None
) -> "DrainResult":
    from agent.slurm.commands import NodeSlurmCommands
    from agent.slurm.drain import DrainOutcome, drain_node

    name = node_name()
    result = drain_node(NodeSlurmCommands(until_s, os.environ), name, fitness.obstacles, share_max)
    if result.outcome is not DrainOutcome.ALREADY_DRAINED:
        fields: Mapping[str, Any] = {
            "node": name,
            "for": use.value,
            "outcome": result.outcome.value,
            "obstacles": list(fitness.obstacles),
            "reason": result.reason,
            "note": result.note,
        }
        _log(log, fields)
    return result


def _log(log: Path | None, fields: Mapping[str, Any]) -> None:
    path = log or (ACTION_LOG if os.geteuid() == 0 else None)
    if path is None:
        return
    try:
        append_action(path, "drain", fields)
    except StorageError as error:  # a full disk must not keep a broken node in service
        echo(f"rankmend: {error}", err=True)


def _print_result(fitness: "Fitness", result: "DrainResult", error: str) -> None:
    lines = [f"critical: {text}" for text in fitness.obstacles]
    lines += [f"warning: {text}" for text in fitness.warnings]
    if fitness.unanswered:
        lines.append(f"no answer from {', '.join(fitness.unanswered)}")
    if error:
        lines.append(f"node not checked: {error}")
    if result.outcome.value != "not_needed":
        message = f"drain: {result.outcome.value.replace('_', ' ')}"
        lines.append(": ".join(part for part in (message, result.note or result.reason) if part))
    for line in lines:
        echo(f"rankmend: {line}", err=True)
