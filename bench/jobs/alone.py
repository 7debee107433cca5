"""A job whose ranks need each other for nothing: each goes on stepping and saving by itself when the others are gone.

Notes when each step begins and each save is published, by the wall clock, in a file of its own: ``ATTEMPT WHAT UNIX_S`` lines.
"""

import argparse
import os
import time
from pathlib import Path

import rankmend


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--save-every", type=int, default=10)
    arguments = parser.parse_args()
    rank, attempt = os.environ["RANK"], os.environ["RANKMEND_ATTEMPT"]
    name = arguments.folder / f"notes-{attempt}-{rank}-{os.getpid()}"
    notes = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str) -> None:
        os.write(notes, f"{attempt} {what} {time.time():.6f}\n".encode())

    saved = arguments.folder / f"saved-{rank}"
    step = 0
    while True:
        step += 1
        note("begins")
        time.sleep(arguments.step_s)
        rankmend.step(step)
        if step % arguments.save_every == 0:
            temporary = saved.with_name(f".{saved.name}-{os.getpid()}")
            temporary.write_text(f"{attempt} {step}\n")
            if rankmend.may_publish(saved):
                temporary.replace(saved)
                note("publishes")


main()
