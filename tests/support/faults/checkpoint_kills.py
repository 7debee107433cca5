"""Runs a training script and kills rank 0 at a chosen point of a save, a rotation or a restore.

    checkpoint_kills.py PLAN SCRIPT ARGUMENTS...

PLAN is a JSON list of kills, one after the other, each at most one an attempt: a pattern of the event, the
how-many-th event that is (from 1), and how the rank dies: "before" the event, or "half" way through it (a
file that is half written). The file `kills` in the working folder counts them. Events are texts such as `save out/checkpoint-20/optimizer.pt` (torch.save and safetensors), `write PATH`,
`read PATH`, `os.rename FROM TO`, `os.remove PATH`, `shutil.rmtree PATH`; a pattern is searched in them.
"""

import json
import os
import re
import runpy
import signal
import sys
from pathlib import Path

COUNT = Path("kills")


def count():
    return int(COUNT.read_text()) if COUNT.exists() else 0


def die():
    COUNT.write_text(str(count() + 1))
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


class Kill:
    def __init__(self, pattern, count=1, how="before"):
        self.pattern, self.left, self.is_half = re.compile(pattern), count, how == "half"

    def meets(self, event):
        if self.left <= 0 or self.pattern.search(event) is None:
            return False
        self.left -= 1
        return self.left == 0

    def hear(self, event):
        if self.meets(event):
            die()

    def around(self, original, place):
        """Return the function that writes a file, with the kill before or half way through it."""

        def write(*arguments, **named):
            path = arguments[place] if len(arguments) > place else named.get("f")
            is_met = isinstance(path, (str, os.PathLike)) and self.meets(f"save {path}")
            if is_met and not self.is_half:
                die()
            result = original(*arguments, **named)
            if is_met:
                os.truncate(path, Path(path).stat().st_size // 2)
                die()
            return result

        return write

    def audit(self, event, arguments):
        if event == "open" and isinstance(arguments[0], str):
            mode, flags = arguments[1], arguments[2]
            is_write = bool(flags & (os.O_WRONLY | os.O_RDWR)) if mode is None else mode[0] in "wxa"
            self.hear(f"{'write' if is_write else 'read'} {arguments[0]}")
        elif event in ("os.rename", "os.remove", "shutil.rmtree"):
            self.hear(" ".join([event, *(str(one) for one in arguments[:2])]))


def arm(kill):
    import torch

    torch.save = kill.around(torch.save, 1)
    try:
        import safetensors.torch
    except ImportError:
        pass
    else:
        safetensors.torch.save_file = kill.around(safetensors.torch.save_file, 1)
    sys.addaudithook(kill.audit)


def main():
    kills = json.loads(sys.argv[1])
    if os.environ["RANK"] == "0" and count() < len(kills):
        if kills[count()] == ["start"]:
            die()
        arm(Kill(*kills[count()]))
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
