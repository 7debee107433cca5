"""The launchers of the recovery benchmark: those of bench/restart.py, and those that have to be installed."""

import sys
from pathlib import Path

from bench.recovery.install import read_installed
from bench.restart import NO_SHARED_STORE, Peer, known_peers

TORCHFT_JOB = Path(__file__).resolve().parents[1] / "jobs" / "torchft_ddp.py"
TORCHFT_GROUPS = Path(__file__).resolve().parent / "torchft_groups.py"
NAMES = (
    *("rankmend", "rankmend-known", "rankmend-cold", "rankmend-standby"),
    *("torchrun", "ft_launcher", "torchft"),
)
ATTEMPTS_PER_KILL = 3  # a restart may fail, and launchers try again within their own limit


def peers_of(ranks: int, kills: int, venv: Path) -> dict[str, Peer]:
    """Return all launchers for a job of this size, whether installed or not."""
    restarts_max = ATTEMPTS_PER_KILL * kills
    known = known_peers(ranks, restarts_max)
    one_node = ("--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts_max}")
    groups = ("--ranks", str(ranks), "--max-restarts", str(restarts_max))
    known["ft_launcher"] = Peer(
        "ft_launcher", (str(venv / "bin" / "ft_launcher"), *one_node), NO_SHARED_STORE
    )
    known["torchft"] = Peer(
        "torchft",
        (str(venv / "bin" / "python"), str(TORCHFT_GROUPS), *groups),
        job=TORCHFT_JOB,
        keeps_survivors=True,
    )
    return {name: known[name] for name in NAMES}


def why_missing(name: str, venv: Path) -> str:
    """Return why a launcher can't be run; empty if it can."""
    if name not in ("ft_launcher", "torchft"):
        return ""
    installed = read_installed(venv).get(name)
    if installed is None:
        return f"not installed in {venv}: python -m bench.recovery.install {venv}"
    return installed.reason


def versions(venv: Path) -> dict[str, str]:
    """Return the installed launchers' versions by name."""
    from importlib.metadata import version

    found = {name: one.version for name, one in read_installed(venv).items() if one.version}
    return {"torchrun": version("torch"), "python": sys.version.split()[0], **found}
