"""The option `--hold` of `rankmend preflight`: keeps a node that failed out, and returns one that passed if we took it out.

Everything is dry until `--act`. Calls to Slurm or a controller run in a child process with a deadline, as all that may hang.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankmend.cli.output import echo
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from agent.preflight.result_file import FlightResult
    from detectors.preflight.holds import NodeHold

HOLD_S: Final = 2.0  # of a check's bound, at least
HOLD_S_MAX: Final = 20.0
_MARK: Final = "preflight: "


@dataclass(frozen=True, slots=True)
class HoldOptions:
    """``where``: slurm, controller, kubernetes or nothing."""

    where: str | None
    acts: bool
    is_hang_cause: bool
    share_max: float
    controller: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None


def hold_or_return(
    options: HoldOptions,
    result: "FlightResult",
    state: Path,
    children: Any,
    limit_s: float = HOLD_S,
) -> dict[str, Any]:
    """Decide and act within ``limit_s``; return what was done, for JSON. Never raises for a manager's silence."""
    if options.where is None:
        return {}

    def act(_until_end: int) -> dict[str, Any]:
        try:
            return _act(options, result, state, limit_s)
        except (RankmendError, OSError, ValueError) as error:
            return {"where": options.where, "move": "none", "problem": str(error)}

    children.start_function("hold", act, limit_s)
    lines: list[dict[str, Any]] = children.wait(["hold"])["hold"].lines()
    silent = {"where": options.where, "move": "none", "problem": "no answer in time"}
    done = lines[0] if lines else silent
    text = done.get("problem") or f"{done['move']}: {done['why']}"
    echo(f"rankmend: {done['where']}: {'' if options.acts else 'would '}{text}", err=True)
    return done


def _act(
    options: HoldOptions, result: "FlightResult", state: Path, limit_s: float
) -> dict[str, Any]:
    from agent.preflight.hold_record import read_hold
    from detectors.preflight.holds import HoldMove, causes_of, decide_hold

    assert options.where is not None, "asked for"
    is_slurm = options.where == "slurm"
    manager = _Slurm(options, limit_s) if is_slurm else _Controller(options)
    hold = manager.hold(result.node, read_hold(state, options.where))
    causes = causes_of(result.checks, is_hang_cause=options.is_hang_cause)
    decision = decide_hold(result.outcome, causes, hold)
    reported: dict[str, Any] = {
        "where": options.where,
        "move": decision.move.name.lower(),
        "why": decision.why,
        "acts": options.acts,
    }
    if options.acts and causes and decision.move is HoldMove.LEAVE:
        reported["outcome"] = "out_already"
    elif options.acts:
        acts: dict[str, Callable[[], dict[str, Any]]] = {
            "hold": lambda: manager.take_out(result.node, causes, state),
            "return": lambda: manager.give_back(result.node, state),
        }
        reported |= acts.get(reported["move"], dict)()
    return reported


class _Slurm:
    """The drain of this node in Slurm, by the same commands and brake as `check node --for prolog`."""

    def __init__(self, options: HoldOptions, limit_s: float) -> None:
        from agent.slurm.commands import NodeSlurmCommands

        self._share_max = options.share_max
        until_s = time.monotonic() + limit_s * 0.8
        self._slurm = NodeSlurmCommands(until_s, os.environ)

    def hold(self, node: str, ours: str | None) -> "NodeHold":
        from detectors.preflight.holds import NodeHold

        seen = self._slurm.node(node)
        return NodeHold(seen.reason if seen.is_drained else None, ours)

    def take_out(self, node: str, causes: list[str], state: Path) -> dict[str, Any]:
        from agent.preflight.hold_record import write_hold
        from agent.slurm.drain import DrainOutcome, drain_node

        named = [f"{_MARK}{causes[0]}", *causes[1:]]
        done = drain_node(self._slurm, node, named, self._share_max)
        if done.outcome is DrainOutcome.DRAINED:
            write_hold(state, "slurm", done.reason)
        elif done.outcome is not DrainOutcome.ALREADY_DRAINED:
            return {"outcome": done.outcome.value, "problem": done.note or done.outcome.value}
        return {"outcome": done.outcome.value, "reason": done.reason}

    def give_back(self, node: str, state: Path) -> dict[str, Any]:
        from agent.preflight.hold_record import write_hold

        self._slurm.undrain(node)
        write_hold(state, "slurm", None)
        return {"outcome": "returned"}


class _Controller:
    """The drain of this node at rankmend's controller: no job gets ranks there. With ``where`` kubernetes the controller cordons it, too."""

    def __init__(self, options: HoldOptions) -> None:
        from rankmend.errors import ConfigError
        from recovery.api.operator_client import OperatorClient

        urls = [url.strip() for url in (options.controller or "").split(",") if url.strip()]
        if not urls:
            raise ConfigError(f"--hold {options.where} needs --controller or RANKMEND_CONTROLLER")
        self._where = options.where or "controller"
        self._client = OperatorClient(urls, token_file=options.token_file, ca_file=options.ca_file)

    def hold(self, node: str, ours: str | None) -> "NodeHold":
        from detectors.preflight.holds import NodeHold

        held = [item for item in self._client.cluster().held if item.node == node]
        return NodeHold(held[0].reason if held else None, ours)

    def take_out(self, node: str, causes: list[str], state: Path) -> dict[str, Any]:
        from agent.preflight.hold_record import write_hold
        from detectors.preflight.holds import REASON_MAX

        reason = f"{_MARK}{'; '.join(causes)}"[:REASON_MAX]
        write_hold(state, self._where, reason)  # before it is done: else nobody could take it back
        also_in = "kubernetes" if self._where == "kubernetes" else ""
        said = self._client.drain(node, reason, is_expected=True, also_in=also_in).text
        return {"outcome": "held", "reason": reason, "said": said}

    def give_back(self, node: str, state: Path) -> dict[str, Any]:
        from agent.preflight.hold_record import write_hold

        said = self._client.release(node, f"{_MARK}passed").text
        write_hold(state, self._where, None)
        return {"outcome": "returned", "said": said}
