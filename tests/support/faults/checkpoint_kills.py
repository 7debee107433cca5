"""Runs a training script and kills one rank at chosen points of a save, a rotation or a restore.

    checkpoint_kills.py MODULES PLAN SCRIPT ARGUMENTS...

MODULES: those whose saves are heard, with commas between. PLAN: a JSON list of kills, at most one an
attempt, one after the other (`tests.support.kill_points`).
The file `kills` in the working folder gets the number of each attempt that was killed. An attempt whose kill is
`apart` trains in a folder of that name, without snapshots. Events are texts, in which a kill's pattern is searched:

    start, end                          the script's
    step                                of a torch optimizer, before it changes parameters; `rankmend.step`
    save PATH, saved PATH               before and after torch.save, safetensors' save_file, numpy.savez
    read PATH, write PATH               before a file is opened
    os.rename FROM TO, os.remove PATH, os.mkdir PATH, shutil.rmtree PATH

After the last kill rank 0 writes every event to the file named by CHECKPOINT_KILLS_TRACE, if that is set.
"""

import json
import os
import re
import runpy
import select
import signal
import sys
import time
from pathlib import Path

COUNT = Path("kills").absolute()
TRACE = "CHECKPOINT_KILLS_TRACE"
WRITERS = {  # the function that writes a file, and which of its arguments is the path
    "torch": ("save", 1),
    "safetensors.torch": ("save_file", 1),
    "safetensors.numpy": ("save_file", 1),
    "numpy": ("savez", 0),
}
BEHIND_S_MAX = 240  # where no rank can be forked, nothing comes that a kill could wait for
KEPT = []
AUDITED = ("os.rename", "os.remove", "os.mkdir", "shutil.rmtree")


def count():
    return len(COUNT.read_text().split()) if COUNT.exists() else 0


class Kill:
    def __init__(self, plan):
        self.pattern, self.left = re.compile(plan["event"]), plan["count"]
        self.cut, self.kept_ratio = plan["cut"], plan["kept_ratio"]
        self.job, self.behind = Path.cwd(), plan["behind"]

    def hear(self, event):
        if self.left > 0 and self.pattern.search(event):
            self.left -= 1
            if self.left == 0:
                self.die()

    def die(self):
        until_s = time.monotonic() + BEHIND_S_MAX
        while self.behind and not any(self.job.glob(self.behind)) and time.monotonic() < until_s:
            select.select([], [], [], 0.01)
        for path in Path().glob(self.cut) if self.cut else ():
            os.truncate(path, int(path.stat().st_size * self.kept_ratio))
        with COUNT.open("a") as file:
            file.write(os.environ["RANKMEND_ATTEMPT"] + "\n")
        os.kill(os.getpid(), signal.SIGKILL)
        while True:
            signal.pause()


class Trace:
    def __init__(self, path):
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hear(self, event):
        os.write(self.descriptor, f"{event}\n".encode())


def audit(listener, event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        mode, flags = arguments[1], arguments[2]
        is_write = bool(flags & (os.O_WRONLY | os.O_RDWR)) if mode is None else mode[0] in "wxa"
        listener.hear(f"{'write' if is_write else 'read'} {arguments[0]}")
    elif event in AUDITED:
        listener.hear(" ".join([event, *(str(one) for one in arguments[:2])]))


def heard(listener, original, place):
    """Return the function that writes a file, with an event before and after it."""

    def write(*arguments, **named):
        path = arguments[place] if len(arguments) > place else named.get("f")
        is_path = isinstance(path, (str, os.PathLike))
        if is_path:
            listener.hear(f"save {path}")
        result = original(*arguments, **named)
        if is_path:
            listener.hear(f"saved {path}")
        return result

    return write


def wrap_step(listener):
    """Hear `rankmend.step`, which replaces itself with another function when it is first called."""
    import rankmend

    original = rankmend.step

    def step(number):
        nonlocal original
        listener.hear("step")
        original(number)
        if rankmend.step is not step:
            original, rankmend.step = rankmend.step, step

    rankmend.step = step


def replace(original, replacement):
    """Put another function in its place in every module: the fork server may have imported those that use it."""
    for module in list(sys.modules.values()):
        names = [name for name, value in list(vars(module).items()) if value is original]
        for name in names:
            setattr(module, name, replacement)


def listen(listener, modules):
    """Tell the listener of whatever happens in this process from now on."""
    for module in modules:
        name, place = WRITERS[module]
        original = getattr(__import__(module, fromlist=[name]), name)
        replace(original, heard(listener, original, place))
    if "torch" in sys.modules:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda *_arguments: listener.hear("step"))
    wrap_step(listener)
    sys.addaudithook(lambda event, arguments: audit(listener, event, arguments))


def choose_listener(kill):
    rank = int(os.environ["RANK"])
    if kill and kill["rank"] == rank:
        return Kill(kill)
    if TRACE in os.environ and rank == 0:
        return Trace(os.environ[TRACE])
    return None


def main():
    modules, plan = sys.argv[1:3]
    kill = next(iter(json.loads(plan)[count() :]), None)
    listener = choose_listener(kill)
    if kill and kill["apart"]:
        Path(kill["apart"]).mkdir(exist_ok=True)
        os.chdir(kill["apart"])
    if listener is not None:
        listener.hear("start")
        listen(listener, [module for module in modules.split(",") if module])
    sys.argv = sys.argv[3:]
    if kill and kill["apart"]:  # from a snapshot the next attempt would go on
        sys.argv = [word for word in sys.argv if not word.startswith("--snapshot-every")]
    if kill and kill["snapshot_every"]:
        sys.argv.append(f"--snapshot-every={kill['snapshot_every']}")
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    # As those of a plain script, its globals live on until the interpreter ends: gloo's thread, joined as DDP is
    # freed, may wait for the interpreter's lock, and whoever frees it here would hold that.
    KEPT.append(runpy.run_path(sys.argv[0], run_name="__main__"))
    if listener is not None:
        listener.hear("end")
    elif kill and kill["apart"]:  # the fork server starts only while all ranks are there
        signal.pause()


if __name__ == "__main__":
    main()
