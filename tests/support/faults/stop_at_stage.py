"""A sitecustomize that stops each forked rank before one stage of its way (`rankmend.hook.forking.STAGES`).

STOP_AT names the stage, STOPPED the file to which the stopped process writes its pid. STOP_FROM: only once this file is there.
"""

import os
import signal
from pathlib import Path


def stop_at(name: str, path: str, begin: str) -> None:
    from rankmend.hook import forking

    def stop(rank: "forking.ForkedRank") -> None:
        if begin and not Path(begin).exists():
            wanted(rank)
            return
        with Path(path).open("a", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGSTOP)
        wanted(rank)

    wanted = next(stage for stage in forking.STAGES if stage.__name__ == name)
    stop.__name__ = name
    stages = [stop if stage is wanted else stage for stage in forking.STAGES]
    forking.STAGES = tuple(stages)


if os.environ.get("STOP_AT"):
    stop_at(os.environ["STOP_AT"], os.environ["STOPPED"], os.environ.get("STOP_FROM", ""))
