"""Installs the peers of the recovery benchmark into a virtual environment of their own.

    python -m bench.recovery.install .venv/peers [--torch torch==2.13.0]

A peer that can't be had here is no error: `installed.json` in that folder says why, and so does the
benchmark's table. The next call tries again those that are missing.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

INSTALL_S_MAX = 1800.0
IMPORT_S_MAX = 300.0
REASON_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class Package:
    requirement: str
    module: str  # which has to be importable


PACKAGES = {
    "ft_launcher": Package("nvidia-resiliency-ext", "nvidia_resiliency_ext.fault_tolerance"),
    "torchft": Package("torchft-nightly", "torchft"),
}


@dataclass(frozen=True, slots=True)
class Installed:
    version: str = ""
    reason: str = ""  # why it is not there; empty if it is


def read_installed(venv: Path) -> dict[str, Installed]:
    """Return what the last installation found; a peer that was never tried is absent."""
    try:
        told = json.loads((venv / "installed.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {peer: Installed(**one) for peer, one in told.items()}


def install(
    venv: Path, together: Sequence[str], packages: Mapping[str, Package]
) -> dict[str, Installed]:
    """Install what is missing, and return what there is then.

    ``together``: requirements that all of them share. pip gets them each time, so that no peer replaces
    the PyTorch that the others have.
    """
    found = read_installed(venv)
    missing = [peer for peer in packages if peer not in found or found[peer].reason]
    if not missing:
        return found
    python = venv / "bin" / "python"
    reason = ""
    if not python.exists():
        # Our own pip installs there: a copy of it would take most of the time.
        make = [sys.executable, "-m", "venv", "--without-pip", str(venv)]
        reason = _reason_of(make, INSTALL_S_MAX)
    reason = reason or _pip(python, *together)
    for peer in missing:
        package = packages[peer]
        found[peer] = (
            Installed(reason=reason) if reason else _install_one(python, together, package)
        )
    venv.mkdir(parents=True, exist_ok=True)
    told = {peer: asdict(one) for peer, one in found.items()}
    (venv / "installed.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return found


def _install_one(python: Path, together: Sequence[str], package: Package) -> Installed:
    if reason := _pip(python, *together, package.requirement):
        return Installed(reason=reason)
    if reason := _reason_of([str(python), "-c", f"import {package.module}"], IMPORT_S_MAX):
        return Installed(reason=reason)
    ask = f"from importlib.metadata import version; print(version({package.requirement!r}))"
    done = subprocess.run([str(python), "-c", ask], check=True, capture_output=True, text=True)
    return Installed(version=done.stdout.strip())


def _pip(python: Path, *requirements: str) -> str:
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    return _reason_of([*pip, "install", "-qq", *requirements], INSTALL_S_MAX)


def _reason_of(command: list[str], limit_s: float) -> str:
    """Run a command; return why it failed, empty if it did not."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)[:REASON_CHARACTERS_MAX]
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [f"exit code {done.returncode}"])[-1][:REASON_CHARACTERS_MAX]


def main() -> None:
    parser = argparse.ArgumentParser(description="Install the peers of the recovery benchmark.")
    parser.add_argument("venv", type=Path)
    parser.add_argument("--torch", default="torch", help="the requirement for pip")
    arguments = parser.parse_args()
    print(f"installing {', '.join(PACKAGES)} into {arguments.venv}", flush=True)
    together = (arguments.torch, "numpy")
    for peer, one in install(arguments.venv.resolve(), together, PACKAGES).items():
        print(f"{peer}: {one.version or 'not installed: ' + one.reason}")


if __name__ == "__main__":
    main()
