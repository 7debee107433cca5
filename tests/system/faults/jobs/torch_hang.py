"""A gloo job of short steps in which one rank comes to hang, in the first attempt.

    torch_hang.py HOW RANK [--answers-pipe]

HOW: sleep, lock (a lock that nobody releases), stop (SIGSTOP, again after each SIGCONT), spin (a loop in Python). With
--answers-pipe each rank dumps its flight recorder as an NCCL rank does: a thread reads
`<pipe file><rank>.pipe` and writes `<dump file><rank>` (ProcessGroupNCCL.cpp, DumpPipe). Gloo
itself records and has nobody who dumps.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

import rankmend

HANG_STEP, STEPS = 12, 24


def hang_here(how: str) -> None:
    if how == "stop":
        signal.signal(signal.SIGCONT, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # the line that hangs
    elif how == "spin":
        while True:
            pass
    else:
        time.sleep(600)


def answer_pipe(rank: int) -> None:
    pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    while os.read(descriptor, 1):
        dump = f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}"
        Path(dump).write_bytes(_dump_fr_trace(includeStackTraces=False))


def main() -> None:
    how, culprit = sys.argv[1], int(sys.argv[2])
    rank, attempt = int(os.environ["RANK"]), int(os.environ["RANKMEND_ATTEMPT"])
    rankmend.attach()
    dist.init_process_group("gloo")
    if "--answers-pipe" in sys.argv:
        threading.Thread(target=answer_pipe, args=(rank,), daemon=True).start()
    for step in range(1, STEPS + 1):
        with rankmend.section("compute"):
            time.sleep(0.01)
            if attempt == 1 and rank == culprit and step == HANG_STEP:
                hang_here(how)
        with rankmend.section("communication"):
            dist.all_reduce(torch.ones(4))
        rankmend.step(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
