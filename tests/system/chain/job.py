"""A job for the chain tests: steps that stop for all ranks when the test breaks the attempt."""

import os
import sys
import time
from pathlib import Path

import rankmend

GIVE_UP = 93  # detectors.failed.failed_ranks.DO_NOT_RETRY


def main() -> None:
    folder = Path(sys.argv[1])
    broken = folder / f"broken-{os.environ['RANKMEND_ATTEMPT']}"
    step = 0
    while not (folder / "finish").exists():
        if (folder / "give-up").exists():
            sys.exit(GIVE_UP)
        step += 1
        with rankmend.section("compute"):
            time.sleep(0.05)
        with rankmend.section("communication"):
            # one that hangs on its device holds up all others
            while broken.exists() and not (folder / "finish").exists():
                time.sleep(0.02)
        rankmend.step(step)


main()
