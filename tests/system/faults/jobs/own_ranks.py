"""A job whose script starts its ranks itself, as `mp.spawn` does: rankmend sees one process that tells no step.

Each attempt of the first two kills its second rank some steps behind a save. The parent then ends as
torch.multiprocessing.spawn does, or as an inner torchrun.
"""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

TABLE = """
=====
train.py FAILED
-----
Failures:
  <NO_OTHER_FAILURES>
-----
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_20:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 7318)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 7318
====="""


class ProcessExitedException(Exception):  # noqa: N818 - as in torch.multiprocessing.spawn
    pass


class ChildFailedError(Exception):
    pass


def train(rank: int, folder: Path, path: str | None, dies_at: int) -> None:
    step, state = 0, np.ones(4)
    if path is not None:
        with np.load(path) as file:
            step, state = int(file["step"]), file["state"]
    while step < 100:
        step += 1
        state = state * 1.01 + step
        time.sleep(0.01)
        if rank == 1 and step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and step % 20 == 0:
            new = folder / ".new.npz"
            np.savez(new, step=step, state=state)
            new.replace(folder / f"step-{step}.npz")
            time.sleep(0.3)  # the other rank dies behind this save
    if rank == 0:
        (folder.parent / "result").write_text(repr(state.tolist()))


def main() -> None:
    how, folder, path = sys.argv[1], Path(sys.argv[2]), [*sys.argv, None][3]
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
    dies_at = {1: 50, 2: 75}.get(attempt, -1)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train, args=(rank, folder, path, dies_at)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    ranks[1].join()
    if ranks[1].exitcode != 0:
        wait_for_save(folder, dies_at // 20 * 20)
        ranks[0].kill()
        ranks[0].join()
        if how == "spawn":
            raise ProcessExitedException("process 1 terminated with signal SIGKILL")
        raise ChildFailedError(TABLE)
    ranks[0].join()


def wait_for_save(folder: Path, step: int) -> None:
    """Wait for the other rank, which a busy machine may have held up."""
    until_s = time.monotonic() + 300
    while not (folder / f"step-{step}.npz").exists() and time.monotonic() < until_s:
        time.sleep(0.01)


main()
