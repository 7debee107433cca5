"""The training job of `rankmend drill`: ranks that wait for each other at every step, and whose result tells each lost or repeated one.

    drill_job.py FOLDER CHECKPOINTS STEPS EVERY STEP_S START_S SAVE_S

The state is whole numbers, so every run that makes each step once ends with the same bits (`replay`). Rank 0 adds the ranks'
shares, saves a checkpoint every EVERY steps, and writes FOLDER/result.json. The last step waits for FOLDER/let-go, so
that no fault comes too late.
"""

import json
import os
import socket
import struct
import sys
import time
from importlib import import_module
from typing import Any, List, Tuple

PRIME = 2_147_483_647
_WORD = struct.Struct("!Q")
_TIMEOUT_S = 600.0


def share(state: int, rank: int, step: int) -> int:
    """Return what a rank adds in a step."""
    return (state * (rank + 3) + step * 7919 + rank) % PRIME


def replay(world_size: int, steps: int) -> int:
    """Return the state after so many steps of which each was made once."""
    state = 1
    for step in range(1, steps + 1):
        state = sum(share(state, rank, step) for rank in range(world_size)) % PRIME
    return state


def _receive(connection: socket.socket) -> int:
    data = b""
    while len(data) < _WORD.size:
        more = connection.recv(_WORD.size - len(data))
        if not more:
            raise ConnectionResetError("another rank is gone")
        data += more
    return int(_WORD.unpack(data)[0])


class _Star:
    """Rank 0 in the middle: each other rank has one connection to it."""

    def __init__(self, rank: int, world_size: int) -> None:
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._is_middle = rank == 0
        self._others: List[socket.socket] = []
        if self._is_middle:
            with socket.create_server(address) as listener:
                listener.settimeout(_TIMEOUT_S)
                self._others = [listener.accept()[0] for _ in range(world_size - 1)]
        else:
            self._others = [_connect(address)]
        for other in self._others:
            other.settimeout(_TIMEOUT_S)
            other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def add(self, value: int) -> int:
        """Return the sum over all ranks."""
        if not self._is_middle:
            self._others[0].sendall(_WORD.pack(value))
            return _receive(self._others[0])
        total = (value + sum(_receive(other) for other in self._others)) % PRIME
        for other in self._others:
            other.sendall(_WORD.pack(total))
        return total


def _connect(address: Tuple[str, int]) -> socket.socket:
    until_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return socket.create_connection(address, timeout=_TIMEOUT_S)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)


def _save(folder: str, step: int, state: int, save_s: float) -> None:
    import numpy as np

    hook: Any = import_module("rankmend")

    path = os.path.join(folder, "step-%08d.npz" % step)
    beside = os.path.join(folder, ".step-%08d.%d.tmp" % (step, os.getpid()))
    with open(beside, "wb") as file:
        np.savez(file, step=step, state=np.full(512, state, np.int64))
        time.sleep(save_s)
        file.flush()
        os.fsync(file.fileno())
    if hook.may_publish(path):
        os.replace(beside, path)


def _load() -> Tuple[int, int]:
    import numpy as np

    hook: Any = import_module("rankmend")

    chosen = hook.resume()
    if chosen is None:
        return 0, 1
    with np.load(chosen.path, allow_pickle=False) as file:
        return int(file["step"]), int(file["state"][0])


def main(
    folder: str,
    checkpoints: str,
    steps: int,
    every: int,
    step_s: float,
    start_s: float,
    save_s: float,
) -> None:
    hook: Any = import_module("rankmend")

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    step, state = _load()
    time.sleep(start_s)
    star = _Star(rank, world_size)
    while step < steps:
        step += 1
        while step == steps and not os.path.exists(os.path.join(folder, "let-go")):
            time.sleep(0.02)
        with hook.section("compute"):
            time.sleep(step_s)
            value = share(state, rank, step)
        with hook.section("communication"):
            state = star.add(value)
        hook.step(step)
        if rank == 0 and step % every == 0:
            with hook.section("checkpoint"):
                _save(checkpoints, step, state, save_s)
    if rank == 0:
        with open(os.path.join(folder, "result.json"), "w") as file:
            json.dump({"step": step, "state": state}, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *map(float, sys.argv[5:8]))
