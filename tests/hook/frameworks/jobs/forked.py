"""Runs trainings again and again in forked children: undisturbed, then killed at each of some steps and resumed.

A child per run, because the libraries take seconds to import. One child leaves what each of the kills would: it copies its snapshots,
which it alone writes, at each of these steps, and is killed at the last one. Given is JSON: for each case how often snapshots are taken, and the
steps of the kills. Prints JSON: for each case the digest of an undisturbed run, and for each step of a kill the step that was
restored and the digest at the end; or what a function of that name has returned in a child.
"""

import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

PROGRESS = os.environ.pop("RANKMEND_PROGRESS_FILE")  # this process is no rank, its children are

from rankmend.hook.snapshots import layout  # noqa: E402

FOLDER = Path(os.environ["RANKMEND_SNAPSHOTS"])
KILLED = FOLDER.with_name("killed")  # by step: the snapshots that a kill there leaves
AfterStep = Callable[[int], None]  # called after each step
Train = Callable[[str, int, AfterStep], object]  # a case, how often snapshots are taken; a model


def run(train: Train, *others: Callable[[], object]) -> None:
    told = {other.__name__: other() for other in others}
    for case, (every, kills) in json.loads(sys.argv[1]).items():
        told[case] = _run_case(partial(train, case, every), kills)
    print(json.dumps(told))


def _run_case(train: Callable[[AfterStep], object], kills: list[int]) -> dict[str, object]:
    restored = {}
    undisturbed = _child(train, (), choice="", is_kept=False)
    assert _child(train, kills, choice="") is None, f"it was to be killed at {kills[-1]}"
    for kill_at in kills:
        clear()
        shutil.copytree(KILLED / str(kill_at), FOLDER, dirs_exist_ok=True)
        step = max(_steps())
        restored[kill_at] = [step, _child(train, (), f"3:{step}")]
    clear()
    shutil.rmtree(KILLED)
    return {"undisturbed": undisturbed, "kills": restored}


def clear() -> None:
    for path in FOLDER.iterdir():
        path.unlink()


def run_once(function: Callable[[], object], choice: str = "") -> str | None:
    """Return what this returns, a model's digest or a text, in a child that keeps snapshots."""
    return _child(lambda _after_step: function(), (), choice)


def _steps() -> list[int]:
    found = []
    for path in FOLDER.glob("*.snapshot"):
        data = path.read_bytes()
        header = layout.parse(data[: layout.DATA_AT], len(data))
        if layout.COMMIT.unpack_from(data, layout.COMMIT_AT)[0] == header.sequence:
            found.append(header.step)
    return found


def _child(
    train: Callable[[AfterStep], object], kills: Sequence[int], choice: str, *, is_kept: bool = True
) -> str | None:
    """Return the digest of what was trained, or None where the child was killed; ``is_kept``: with snapshots.

    ``kills``: steps, at the last of which it is killed.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.environ["RANKMEND_PROGRESS_FILE"] = PROGRESS
            os.environ["RANKMEND_SNAPSHOT"] = choice
            with socket.create_server(("127.0.0.1", 0)) as free:
                os.environ["MASTER_PORT"] = str(free.getsockname()[1])
            if not is_kept:
                os.environ["RANKMEND_SNAPSHOTS"] = ""  # undisturbed, and without rankmend

            def after_step(step: int) -> None:
                left = KILLED / str(step)
                if step in kills and not left.exists():
                    shutil.copytree(FOLDER, left)
                if kills and step == kills[-1]:
                    os.kill(os.getpid(), signal.SIGKILL)

            os.write(writing, _digest(train(after_step)).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as file:
        told = file.read()
    _pid, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return None
    assert status == 0, status
    return told


def _digest(model: object) -> str:
    import torch

    if isinstance(model, str):
        return model
    assert isinstance(model, torch.nn.Module)
    whole = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        whole.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()
