"""Kills ranks that are copying their state from the GPU, and reads what they leave."""

import os
import random
import selectors
import subprocess
import sys
import time
from pathlib import Path

from bench.gpu.rows import NotTriedError, Trial
from bench.gpu.snapshot_victim import TENSORS
from rankmend.hook.snapshots import layout, restoring
from rankmend.hook.snapshots.keeper import Identity

KILLS = 10
READY_S_MAX = 45.0
SPREAD_S = 1.0
END_S_MAX = 20.0
ROOT = Path(__file__).resolve().parents[2]


def try_kills(trial: Trial, device: str, folder: Path) -> None:
    """Start all ranks at once, kill each at a moment of its own, and read its files."""
    kills = KILLS if device == "cuda" else 2
    places = [folder / f"victim-{number}" for number in range(kills)]
    victims = [_start(device, place) for place in places]
    try:
        ready = _wait_ready(victims)
        if not ready:
            raise NotTriedError(f"no rank took a snapshot within {READY_S_MAX:g} s")
        if len(ready) < kills:
            trial.note(f"{len(ready)} of {kills} ranks were ready in time")
        moments = random.Random(5)
        for number in ready:
            time.sleep(moments.random() * SPREAD_S / kills)
            victims[number].kill()
        for number in ready:
            victims[number].wait(END_S_MAX)
    finally:
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.wait(END_S_MAX)
    torn = 0
    for number in ready:
        torn += _check(trial, places[number], number)
    trial.figure("kills", len(ready))
    trial.figure("in_mid_copy", torn)
    if device == "cuda":
        trial.check(torn, "no kill fell into a copy, so nothing was proved")


def _start(device: str, folder: Path) -> "subprocess.Popen[bytes]":
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return subprocess.Popen(
        [sys.executable, "-m", "bench.gpu.snapshot_victim", device, str(folder)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


def _wait_ready(victims: "list[subprocess.Popen[bytes]]") -> list[int]:
    """Return the numbers of those that have taken snapshots in time."""
    ready: list[int] = []
    until_s = time.monotonic() + READY_S_MAX
    with selectors.DefaultSelector() as selector:
        for number, victim in enumerate(victims):
            assert victim.stdout is not None
            selector.register(victim.stdout, selectors.EVENT_READ, number)
        while selector.get_map() and time.monotonic() < until_s:
            for key, _events in selector.select(0.2):
                if os.read(key.fd, 4096).startswith(b"ready"):
                    ready.append(key.data)
                selector.unregister(key.fileobj)
    return sorted(ready)


def _check(trial: Trial, folder: Path, number: int) -> int:
    """Check what a killed rank has left; return the number of its files that are not whole."""
    whole = torn = 0
    for buffer in range(layout.BUFFERS):
        path = folder / layout.file_name(0, buffer)
        if not path.exists():
            continue
        with path.open("rb") as file:
            data = file.read(layout.DATA_AT)
        header = layout.parse(data, path.stat().st_size)
        (commit,) = layout.COMMIT.unpack_from(data, layout.COMMIT_AT)
        identity = Identity(header.job_id, header.attempt, 0, 0, 1)
        choice = (header.attempt, header.step)
        if commit != header.sequence:
            torn += 1
            try:
                restoring.restore(str(folder), identity, choice)
            except ValueError:
                continue
            trial.check(False, f"rank {number}: a torn snapshot of step {header.step} was given")
            continue
        whole += 1
        state = restoring.restore(str(folder), identity, choice)
        wrong = [name for name, one in state.items() if not bool((one == header.step).all())]
        trial.check(not wrong, f"rank {number}: step {header.step} is torn: tensors {wrong[:3]}")
        trial.check(len(state) == TENSORS, f"rank {number}: {len(state)} tensors")
    trial.check(whole, f"rank {number} left no whole snapshot")
    return torn
