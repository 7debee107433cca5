"""Ranks of bench.gpu.nccl_rank, and rankmend's own ways to ask them."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recovery.launcher.evidence.rank_evidence import (
    ask_for_dump,
    recorder_environment,
    recorder_files,
)

ROOT = Path(__file__).resolve().parents[2]
START_S_MAX = 40.0
ANSWER_S_MAX = 10.0
DUMP_S_MAX = 60.0
ASK_AGAIN_S = 12.0
QUIET_S = 0.3
ENV_DROPPED = ("TORCH_", "NCCL_", "RANKMEND_")
_CLI = "from rankmend.cli import main; main()"


class GroupRank:
    """One rank of a group, in a process of its own."""

    def __init__(
        self,
        device: str,
        folder: Path,
        rank: int,
        size: int,
        more: Mapping[str, str],
        timeout_s: int,
    ) -> None:
        base = {k: v for k, v in os.environ.items() if not k.startswith(ENV_DROPPED)}
        paths = [str(ROOT), *filter(None, [base.get("PYTHONPATH")])]
        base |= {
            "PYTHONPATH": os.pathsep.join(paths),
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(size),
            "NCCL_SOCKET_IFNAME": "lo",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "TORCH_NCCL_ENABLE_TIMING": "1",
            "OMP_NUM_THREADS": "1",
            **more,
        }
        folder.mkdir(exist_ok=True)
        environment = {**base, **recorder_environment(base, folder)}
        files = recorder_files(environment, rank, folder)
        if files is None:
            raise RuntimeError("rankmend has named no files for the flight recorder")
        self.files = files
        self._errors = folder / f"stderr-{rank}"
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        words = [device, str(folder / "store"), str(rank), str(size), str(timeout_s)]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.gpu.nccl_rank", *words],
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    self._lines.put(found)

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()

    def hear(self, what: str, within_s: float = ANSWER_S_MAX) -> dict[str, Any]:
        """Return the next line of this kind. Raises RuntimeError with the rank's last words."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            with contextlib.suppress(queue.Empty):
                found = self._lines.get(timeout=0.1)
                if found.get("what") == what:
                    return found
                continue
            if self.process.poll() is not None and self._lines.empty():
                break
        code = self.process.poll()
        state = "still runs" if code is None else f"ended with {code}"
        raise RuntimeError(f"no {what!r} in {within_s:g} s; the rank {state}: {self.last_words()}")

    @property
    def has_told(self) -> bool:
        """Return whether it has told anything that nobody has heard yet."""
        return not self._lines.empty()

    def errors(self) -> list[str]:
        return self._errors.read_text(errors="replace").splitlines()

    def last_words(self) -> str:
        return " ".join(self.errors()[-8:])[-300:]

    def dump(self, *, is_asked: bool = True, within_s: float = DUMP_S_MAX) -> bytes:
        """Ask for a dump as the launcher does, and return it once it no longer grows. Raises RuntimeError."""
        began_s = time.monotonic()
        before = _stamp(self.files.dump) if is_asked else ()
        has_asked, asked_s = not is_asked, began_s
        seen, since_s = before, began_s
        while time.monotonic() - began_s < within_s:
            if is_asked and (not has_asked or time.monotonic() - asked_s >= ASK_AGAIN_S):
                has_asked, asked_s = ask_for_dump(self.files) or has_asked, time.monotonic()
            stamp = _stamp(self.files.dump)
            if stamp != seen:
                seen, since_s = stamp, time.monotonic()
            elif stamp not in ((), before) and time.monotonic() - since_s >= QUIET_S:
                return self.files.dump.read_bytes()
            time.sleep(0.02)
        if not has_asked:
            raise RuntimeError(f"no process listens at {self.files.pipe.name}: {self.last_words()}")
        raise RuntimeError(f"no dump came in {within_s:g} s: {self.last_words()}")

    def end(self) -> None:
        """Kill it, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ANSWER_S_MAX)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else ()


def judge(folder: Path, dumps: Mapping[int, bytes]) -> dict[str, Any]:
    """Return what `rankmend diagnose hang` says of these dumps. Raises RuntimeError."""
    folder.mkdir()
    for rank, dump in dumps.items():
        (folder / f"flight-rank-{rank}.pkl").write_bytes(dump)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", _CLI, "diagnose", "hang", str(folder), "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"diagnose hang ended with {done.returncode}: {done.stderr[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
