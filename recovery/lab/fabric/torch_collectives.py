"""Runs collectives under the user's PyTorch, in a child process that ends with this one or at its time limit."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import LaunchError
from recovery.lab.fabric.fabric_messages import CollectiveResult, CollectiveWork

SCRIPT: Final = Path(__file__).with_name("collective_child.py")
OUTPUT_BYTES_MAX: Final = 1 << 20


def run_collectives(
    work: CollectiveWork,
    python: Path,
    interface: str,
    on_start: Callable[[subprocess.Popen[bytes]], None],
) -> tuple[CollectiveResult, ...]:
    """Return the time of each operation and size; raise LaunchError with the last line of what went wrong.

    ``on_start`` gets the process, which another thread may kill.
    """
    order = {
        "address": work.address, "port": work.port, "rank": work.rank, "count": work.count,
        "sizes": work.sizes_bytes, "backend": work.backend, "interface": interface,
        "limit_s": work.limit_s,
    }  # fmt: skip
    try:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen([python, SCRIPT], **pipes) as child:  # type: ignore[call-overload]
            try:
                on_start(child)
                output, errors = child.communicate(msgspec.json.encode(order), work.limit_s)
            except BaseException:
                child.kill()
                raise
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"the collectives did not end within {work.limit_s:g} s") from error
    except OSError as error:
        raise LaunchError(f"cannot run {python}: {error.strerror}") from error
    if child.returncode != 0 or len(output) > OUTPUT_BYTES_MAX:
        words = errors.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise LaunchError(f"{python} with PyTorch: exit code {child.returncode}: {words[-1][:300]}")
    try:
        lines = output.splitlines()
        return msgspec.json.decode(lines[-1] if lines else b"", type=tuple[CollectiveResult, ...])
    except msgspec.MsgspecError as error:
        raise LaunchError(
            f"the collectives of {python} ended with an invalid answer: {error}"
        ) from error
