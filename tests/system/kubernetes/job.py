"""A job for the story in Kubernetes: steps until the test says that it is done; each rank says where it runs."""

import os
import sys
import time
from pathlib import Path

import rankmend


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / f"rank-on-{os.environ['NODE_NAME']}").write_text(str(os.getpid()))
    step = 0
    while not (folder / "finish").exists():
        step += 1
        time.sleep(0.05)
        rankmend.step(step)


main()
