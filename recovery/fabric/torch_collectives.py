"""Runs collectives under the user's PyTorch, in a child process that ends with this one or at its time limit."""

import subprocess
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import LaunchError
from recovery.fabric.fabric_messages import CollectiveResult, CollectiveWork

SCRIPT: Final = Path(__file__).with_name("collective_child.py")
OUTPUT_BYTES_MAX: Final = 1 << 20


def run_collectives(
    work: CollectiveWork, python: Path, interface: str
) -> tuple[CollectiveResult, ...]:
    """Return the time of each operation and size; raise LaunchError with the last line of what went wrong."""
    order = {
        "address": work.address, "port": work.port, "rank": work.rank, "count": work.count,
        "sizes": work.sizes_bytes, "backend": work.backend, "interface": interface,
        "limit_s": work.limit_s,
    }  # fmt: skip
    try:
        done = subprocess.run(
            [python, SCRIPT],
            input=msgspec.json.encode(order),
            capture_output=True,
            timeout=work.limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"the collectives did not end within {work.limit_s:g} s") from error
    except OSError as error:
        raise LaunchError(f"cannot run {python}: {error.strerror}") from error
    if done.returncode != 0 or len(done.stdout) > OUTPUT_BYTES_MAX:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise LaunchError(f"{python} with PyTorch: exit code {done.returncode}: {words[-1][:300]}")
    try:
        lines = done.stdout.splitlines()
        return msgspec.json.decode(lines[-1] if lines else b"", type=tuple[CollectiveResult, ...])
    except msgspec.MsgspecError as error:
        raise LaunchError(
            f"the collectives of {python} ended with an invalid answer: {error}"
        ) from error
