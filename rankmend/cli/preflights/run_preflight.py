"""`rankmend run --preflight`: the check of this node before its ranks start, and the launcher's refusal."""

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmend.cli.output import echo
from rankmend.cli.preflights.preflight_check import TRY_LATER, CheckOptions, check_this_node

if TYPE_CHECKING:
    from agent.preflight.result_file import FlightResult
    from recovery.launcher.run.options import RunOptions

UNFIT: Final = 69  # EX_UNAVAILABLE in sysexits.h; no exit code of Python, a shell or torchrun
_SIGNALLED: Final = 128


def check_first(level_name: str, baseline: Path | None, requested: "RunOptions") -> "RunOptions":
    """Check this node and return what is requested of its launcher, with whether it passed.

    Or end the launcher: with 69 if the node is unfit, 128 + N after a signal. What could not be checked is told and keeps nobody out; in observe mode nothing does.
    """
    from detectors.preflight.levels import FlightLevel
    from recovery.launcher.ranks.command import choose_interpreter

    interpreter = choose_interpreter(
        requested.python_path, os.environ, sys.executable, Path(sys.prefix)
    )
    level = FlightLevel(level_name)
    options = CheckOptions(
        network=level is not FlightLevel.QUICK and _has_other_nodes(),
        python_path=interpreter.path,
        checkpoint_dir=requested.checkpoint_dir,
        no_health=find_spec("apscheduler") is None,
        baselines=(baseline,) if baseline is not None else (),
        state=None if requested.state_dir is None else requested.state_dir / "preflight",
        node_name=requested.node_name,
    )
    _print_notice(requested, f"pre-flight check at level {level_name}")
    done = check_this_node(level, None, options)
    code, result = done.exit_code, done.result
    assert result is not None, "this was no dry run"
    if code >= _SIGNALLED:
        sys.exit(code)
    refusals = refusals_of(result)
    for line in refusals:
        echo(f"rankmend: {line}", err=True)
    if refusals and requested.observe:
        echo("rankmend: observe mode: the ranks start anyway", err=True)
    elif refusals:
        echo(
            f"rankmend: {result.node} failed its pre-flight check: no rank starts here (exit code {UNFIT})",
            err=True,
        )
        sys.exit(UNFIT)
    elif code == TRY_LATER:
        echo("rankmend: this node was not checked; its ranks start", err=True)
    else:
        _print_notice(
            requested, f"pre-flight check {result.outcome.value} in {result.took_s:.0f} s"
        )
    checked = with_result(requested, result)
    if requested.grow_every_s is not None and not checked.passed_preflight:
        _print_notice(
            requested,
            "--grow-every takes in no node whose check did not pass: start this launcher again to repeat it",
        )
    return checked


def with_result(requested: "RunOptions", result: "FlightResult") -> "RunOptions":
    """Return what is asked of the launcher, with whether its node passed: a check without an answer is no pass."""
    from detectors.preflight.verdicts import FlightOutcome

    return replace(requested, passed_preflight=result.outcome is FlightOutcome.PASSED)


def _has_other_nodes() -> bool:
    """Return whether srun starts this launcher on other nodes at the same time: these test the network among themselves."""
    from recovery.launcher.run.slurm.step import read_step

    step = read_step(os.environ)
    return step is not None and len(step.nodes) > 1


def refusals_of(result: "FlightResult") -> list[str]:
    """Return why ranks are not to start: what failed, and what hangs in the kernel; warn of the rest."""
    from detectors.preflight.verdicts import CheckStanding

    refusing = (CheckStanding.FAILED, CheckStanding.HUNG)
    for check in result.checks:
        if check.standing is CheckStanding.SILENT:
            echo(f"rankmend: not checked: {check.name} {check.part}: {check.reason}", err=True)
    return [
        f"{check.name} {check.part}: {check.reason}{f' ({check.advice})' if check.advice else ''}"
        for check in result.checks
        if check.standing in refusing
    ]


def _print_notice(requested: "RunOptions", text: str) -> None:
    if not requested.quiet:
        echo(f"rankmend: {text}", err=True)
