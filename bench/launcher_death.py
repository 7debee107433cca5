"""Measures the seconds from the death of a launcher to the first new step on a spare.

    python bench/launcher_death.py [--rounds 3] [--output FILE.json]

A controller over TLS and three launchers on this machine's loopback, two of them with two ranks each
of `examples/digits`, one spare, the shipped policy. Each round kills one launcher in two ways: alone
(its guardian ends the ranks and has it said), and together with everything that it had started, as
when a host dies: then only the lease proves that the node is empty. A new step is one whose
checkpoint (each 5 steps) is newer than all that the dead attempt left.
"""

import argparse
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

DIGITS = Path(__file__).resolve().parent.parent / "examples" / "digits"
RANKMEND = (sys.executable, "-m", "rankmend.cli")
NODES = ("n1", "n2", "n3")
POLL_S = 0.02
WAIT_S_MAX = 120.0
DEAD_S = 0.3  # after the kill: by then the guardian has killed its ranks, and nobody writes
WAYS = ("launcher", "all of the node")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS:
            took[way].append(measure(way))
            print(f"round {number + 1}: {way} killed: {took[way][-1]:.2f} s", file=sys.stderr)
    print(f"{platform.machine()}, load {os.getloadavg()[0]:.1f}; seconds to the first new step")
    for way, values in took.items():
        median = statistics.median(values)
        print(
            f"{way:16} {median:6.2f}  ({min(values):.2f} to {max(values):.2f}), {len(values)} runs"
        )
    if options.output:
        options.output.write_text(json.dumps(took, indent=1) + "\n")


def measure(way: str) -> float:
    """Return the seconds from one kill to the first new step."""
    with tempfile.TemporaryDirectory(prefix="rankmend-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        started: list[subprocess.Popen[bytes]] = []
        try:
            return _kill_and_watch(folder, started, way)
        except TimeoutError:
            for path in sorted(folder.glob("*.log")):
                print(f"== {path.name}\n{path.read_text()[-2000:]}", file=sys.stderr)
            raise
        finally:
            for process in started:
                for one in _tree(process.pid):
                    one.kill()
            for process in started:
                process.wait()


def _kill_and_watch(folder: Path, started: list[subprocess.Popen[bytes]], way: str) -> float:
    url = _start_controller(folder, started)
    data, checkpoints = folder / "digits.npz", folder / "checkpoints"
    checkpoints.mkdir()
    subprocess.run([sys.executable, str(DIGITS / "prepare.py"), str(data)], check=True)
    launchers = {}
    for node in NODES:
        launchers[node] = _start(
            folder,
            started,
            node,
            *(*RANKMEND, "run", "--nnodes=3", "--spares=1", "--nproc-per-node=2"),
            *(f"--controller={url}", f"--token-file={folder}/conf/launch.token"),
            *(f"--ca-file={folder}/conf/ca.crt", "--job=bench", f"--node-name={node}"),
            *(f"--checkpoint-dir={checkpoints}", f"--state-dir={folder}/state-{node}"),
            *(f"--agent-socket={folder}/none", str(DIGITS / "train.py"), f"--data={data}"),
            *(f"--checkpoint-dir={checkpoints}", "--steps=100000000", "--checkpoint-every=5"),
        )

    def newest() -> int:
        names = (path.stem.rpartition("-")[2] for path in checkpoints.glob("step-*.npz"))
        return max((int(name) for name in names if name.isdigit()), default=0)

    _wait(lambda: newest() >= 50, "training")
    victim = next(one for one in launchers.values() if len(_tree(one.pid)) > 3)  # it has ranks
    killed_s = time.monotonic()
    for one in _tree(victim.pid) if way != "launcher" else [psutil.Process(victim.pid)]:
        one.send_signal(signal.SIGKILL)
    time.sleep(DEAD_S)
    before = newest()
    _wait(lambda: newest() > before, "a new step")
    return time.monotonic() - killed_s


def _start_controller(folder: Path, started: list[subprocess.Popen[bytes]]) -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    subprocess.run(
        [*RANKMEND, "controller", "init", str(folder / "conf"), "--host=localhost"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    config = folder / "conf" / "controller.toml"
    text = config.read_text().replace('listen = ":9477"', f'listen = "127.0.0.1:{port}"')
    config.write_text(text.replace('"/var/lib/rankmend-controller"', f'"{folder}/controller"'))
    _start(folder, started, "controller", *RANKMEND, "controller", "run", f"--config={config}")
    return f"https://localhost:{port}"


def _start(
    folder: Path, started: list[subprocess.Popen[bytes]], name: str, *argv: str
) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    started.append(process)
    return process


def _tree(pid: int) -> list[psutil.Process]:
    """Return the process and all that it has started, as far as they are there."""
    try:
        process = psutil.Process(pid)
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []


def _wait(is_so: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WAIT_S_MAX
    while not is_so():
        if time.monotonic() > until_s:
            raise TimeoutError(f"never within {WAIT_S_MAX:g} s: {what}")
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
