"""Runs a training again and again in forked children: undisturbed, then killed at each of some steps and resumed.

A child per run, because the libraries take seconds to import. Prints JSON: the digest of an undisturbed run, and for each
step of a kill the step that was restored and the digest at the end.
"""

import hashlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

PROGRESS = os.environ.pop("RANKMEND_PROGRESS_FILE")  # this process is no rank, its children are

from rankmend.hook.snapshots import layout  # noqa: E402

FOLDER = Path(os.environ["RANKMEND_SNAPSHOTS"])
Train = Callable[
    [Callable[[int], None]], object
]  # given what is called after each step; returns a model


def run(train: Train, kills: list[int]) -> None:
    told = {"undisturbed": _child(train, kill_at=0, choice=""), "kills": {}}
    for kill_at in kills:
        assert _child(train, kill_at, choice="") is None, "it was to be killed"
        step = max(_steps())
        told["kills"][kill_at] = [step, _child(train, 0, f"3:{step}")]
        for path in FOLDER.iterdir():
            path.unlink()
    print(json.dumps(told))


def _steps() -> list[int]:
    found = []
    for path in FOLDER.glob("*.snapshot"):
        data = path.read_bytes()
        header = layout.parse(data[: layout.DATA_AT], len(data))
        if layout.COMMIT.unpack_from(data, layout.COMMIT_AT)[0] == header.sequence:
            found.append(header.step)
    return found


def _child(train: Train, kill_at: int, choice: str) -> str | None:
    """Return the digest of what was trained, or None where the child was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.environ["RANKMEND_PROGRESS_FILE"] = PROGRESS
            os.environ["RANKMEND_SNAPSHOT"] = choice
            with socket.create_server(("127.0.0.1", 0)) as free:
                os.environ["MASTER_PORT"] = str(free.getsockname()[1])
            if not choice and not kill_at:
                os.environ["RANKMEND_SNAPSHOTS"] = ""  # undisturbed, and without rankmend

            def after_step(step: int) -> None:
                if kill_at and step == kill_at:
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

    assert isinstance(model, torch.nn.Module)
    whole = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        whole.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()


def arguments() -> tuple[str, int, list[int]]:
    """Return the case, how often snapshots are taken, and the steps of the kills."""
    case, every, *kills = sys.argv[1:]
    return case, int(every), [int(one) for one in kills]
