"""The job of bench/recovery/many_hosts.py: ranks that sum a number in each step over plain sockets, without torch.

Rank 0 listens at MASTER_ADDR:MASTER_PORT, receives a number of every rank and returns the sum: a step ends for all at once. Each process appends
lines `EVENT ATTEMPT RANK UNIX_NS STEP` to one file; the hosts are namespaces of one machine, whose wall clock they share. The rank that the file
`kill` names kills itself by SIGKILL, as from outside, and notes the moment before.
"""

import argparse
import json
import os
import signal
import socket
import struct
import time
from pathlib import Path

import rankmend

NUMBER = struct.Struct("!q")
STEP_S = 0.05
CONNECT_S_MAX = 60.0
SAVE_EVERY = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["RANKMEND_ATTEMPT"])
    log = os.open(folder / "events", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, step: int) -> None:
        os.write(log, f"{event} {attempt} {rank} {time.time_ns()} {step}\n".encode())

    note("started", 0)
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    others = serve(place[1], size - 1) if rank == 0 else [connect(place)]
    note("connected", 0)
    chosen = rankmend.resume()
    step = 0 if chosen is None else load(Path(chosen.path))
    first = step + 1
    while not (folder / "end").exists() or rank != 0:
        time.sleep(STEP_S)
        step += 1
        if read_kill(folder) == (rank, attempt):
            note("kill", step)
            os.kill(os.getpid(), signal.SIGKILL)
        total = sum_up(others, rank + step) if rank == 0 else ask(others[0], rank + step)
        if total is None:
            break
        assert total == size * (size - 1) // 2 + size * step, "the sum of one step"
        rankmend.step(step)
        if step == first:
            note("step", step)
        if rank == 0 and step % SAVE_EVERY == 0:
            save(folder / "checkpoints", step)
    for other in others:
        other.close()


def serve(port: int, count: int) -> list[socket.socket]:
    with socket.create_server(("", port), backlog=count) as listener:
        listener.settimeout(CONNECT_S_MAX)
        return [listener.accept()[0] for _rank in range(count)]


def connect(place: tuple[str, int]) -> socket.socket:
    until_s = time.monotonic() + CONNECT_S_MAX
    while True:
        try:
            return socket.create_connection(place, timeout=CONNECT_S_MAX)
        except ConnectionRefusedError:  # rank 0 starts like the others
            if time.monotonic() >= until_s:
                raise
            time.sleep(0.005)


def read_kill(folder: Path) -> tuple[int, int] | None:
    """Return the rank to kill and its attempt, or None."""
    try:
        rank, attempt = (folder / "kill").read_text().split()
    except (OSError, ValueError):  # not there, or not whole yet
        return None
    return int(rank), int(attempt)


def sum_up(others: list[socket.socket], own: int) -> int:
    total = own + sum(NUMBER.unpack(receive(other))[0] for other in others)
    for other in others:
        other.sendall(NUMBER.pack(total))
    return total


def ask(first: socket.socket, own: int) -> int | None:
    """Return the sum; None where rank 0 has ended the job."""
    try:
        first.sendall(NUMBER.pack(own))
        return int(NUMBER.unpack(receive(first))[0])
    except EOFError:
        return None


def receive(other: socket.socket) -> bytes:
    data = b""
    while len(data) < NUMBER.size:
        part = other.recv(NUMBER.size - len(data))
        if not part:
            raise EOFError("the other end is closed")
        data += part
    return data


def save(folder: Path, step: int) -> None:
    """Save the step in safetensors' format: the size of a JSON header, the header, the numbers."""
    path = folder / f"step-{step:08d}.safetensors"
    temporary = folder / f".{path.name}.tmp"
    header = json.dumps({"step": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    temporary.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<q", step))
    if rankmend.may_publish(path):
        temporary.replace(path)


def load(path: Path) -> int:
    return int(struct.unpack("<q", path.read_bytes()[-8:])[0])


main()
