"""Starts a torchft job on one machine: a lighthouse, and a torchrun for each replica group of one rank.

    python torchft_groups.py --ranks 4 --max-restarts 10 SCRIPT [ARGUMENT...]

Runs under the interpreter that has torchft installed. The lighthouse has the options of torchft's own README; ends with
everything that it started when it is told to, or when all groups have ended.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

LIGHTHOUSE = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
STOP_S_MAX = 5.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--max-restarts", type=int, required=True)
    parser.add_argument("script", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    port = free_port()
    program = str(Path(sys.executable).parent / "torchft_lighthouse")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node=1", f"--max-restarts={arguments.max_restarts}"]
    processes = [subprocess.Popen([program, *LIGHTHOUSE, "--bind", f"127.0.0.1:{port}"])]
    try:
        for group in range(arguments.ranks):
            environment = {
                **os.environ,
                "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
                "REPLICA_GROUP_ID": str(group),
                "NUM_REPLICA_GROUPS": str(arguments.ranks),
            }
            processes.append(subprocess.Popen([*torchrun, *arguments.script], env=environment))
        for process in processes[1:]:
            process.wait()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    main()
