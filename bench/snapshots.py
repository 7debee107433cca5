"""How long training stands still for a snapshot, against a plain copy of the same bytes in memory.

    python bench/snapshots.py [--megabytes 10 200 2000] [--rounds 9] [--threads 1] [--json]

One rank, a real progress file, two snapshot files in /dev/shm. Round by round and in turn: a plain copy (one `copy_` for each
tensor into memory allocated before), `rankmend.snapshot`, and the stall of
`torch.distributed.checkpoint.async_save` (until it returns; its write is waited for outside). Medians,
and the median of the ratios of each round. The goal is 1.3. At the end, how fast `restore` gives the bytes back: mapped, and
once copied into tensors.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import uuid
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

GOAL_RATIO = 1.3
SMALL_TENSORS = 10_000  # of 1 kB
FEW_TENSORS = 20


def prepare(folder: Path) -> None:
    """Make this process the only rank of a job."""
    from rankmend.progress import RankIdentity, create

    job_id = uuid.uuid4()
    os.close(create(folder / "rank0", RankIdentity(job_id, 1, 0, 0, 1)))
    os.environ.update(
        RANKMEND_PROGRESS_FILE=str(folder / "rank0"),
        RANKMEND_JOB_ID=str(job_id),
        RANKMEND_ATTEMPT="1",
        RANKMEND_SNAPSHOTS=str(folder),
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="1",
        LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
    )


def measure(megabytes: int, tensors: int, rounds: int, folder: Path) -> dict[str, object]:
    import torch

    import rankmend

    each = megabytes * 1_000_000 // tensors // 4
    state = {f"layers.{number}.weight": torch.randn(each) for number in range(tensors)}
    size_bytes = each * 4 * tensors
    plain = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for step in range(4):  # both files made
        assert rankmend.snapshot(step, state)
    copies, stalls, saves = [], [], []
    for step in range(rounds):
        copies.append(time_copy(plain, state))
        began_s = perf_counter()
        assert rankmend.snapshot(step, state)
        stalls.append(perf_counter() - began_s)
        saves.append(time_async_save(state, folder))
    del plain
    restored_s, read_s = time_restore(rounds - 1, state)
    return {
        "megabytes": megabytes,
        "tensors": tensors,
        "copy_ms": 1e3 * statistics.median(copies),
        "snapshot_ms": 1e3 * statistics.median(stalls),
        "ratio": statistics.median(a / b for a, b in zip(stalls, copies, strict=True)),
        "async_save_ms": 1e3 * statistics.median(saves) if None not in saves else None,
        "map_ms": 1e3 * restored_s,
        "restore_gb_per_s": size_bytes / (restored_s + read_s) / 1e9,
    }


def time_copy(plain: dict[str, object], state: dict[str, object]) -> float:
    began_s = perf_counter()
    for name, tensor in state.items():
        plain[name].copy_(tensor)  # type: ignore[attr-defined]
    return perf_counter() - began_s


def time_async_save(state: dict[str, object], folder: Path) -> float | None:
    import torch.distributed.checkpoint as checkpoints

    if not hasattr(checkpoints, "async_save"):
        return None
    path = folder / "saved"
    began_s = perf_counter()
    under_way = checkpoints.async_save(state, checkpoint_id=str(path))
    stall_s = perf_counter() - began_s
    under_way.result()
    shutil.rmtree(path)
    return stall_s


def time_restore(step: int, state: dict[str, object]) -> tuple[float, float]:
    import torch

    import rankmend

    os.environ["RANKMEND_SNAPSHOT"] = f"1:{step}"
    began_s = perf_counter()
    restored = rankmend.restore()
    mapped_s = perf_counter() - began_s
    assert restored is not None
    began_s = perf_counter()
    for name, tensor in restored.state.items():
        state[name].copy_(tensor)  # type: ignore[attr-defined]
    copied_s = perf_counter() - began_s
    assert all(torch.equal(state[name], tensor) for name, tensor in restored.state.items())
    return mapped_s, copied_s


def run(megabytes: int, tensors: int, rounds: int) -> dict[str, object]:
    """Measure one size in a process of its own: each has its own files."""
    command = [sys.executable, __file__, "--one", str(megabytes), str(tensors)]
    command += ["--rounds", str(rounds), "--threads", str(THREADS)]
    done = subprocess_output(command)
    row: dict[str, object] = json.loads(done.splitlines()[-1])
    return row


def subprocess_output(command: list[str]) -> str:
    import subprocess

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=1800
    )
    return done.stdout


THREADS = 1


def one(megabytes: int, tensors: int, rounds: int) -> None:
    import torch
    import torch.distributed as dist

    from rankmend.hook import gloo_threads

    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rankmend-bench-") as name:
        folder = Path(name)
        prepare(folder)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        row = measure(megabytes, tensors, rounds, folder)
        gloo_threads.let_go()
        dist.destroy_process_group()
    print(json.dumps(row))


def print_table(rows: list[dict[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"Snapshots in host memory ({os.cpu_count()} cores, load {os.getloadavg()[0]:.1f})"
    )
    for heading in ("MB", "tensors", "copy ms", "snapshot ms", "ratio", "async_save ms"):
        table.add_column(heading, justify="right")
    for heading in ("map ms", "restore GB/s", "goal"):
        table.add_column(heading, justify="right")
    for row in rows:
        ratio = row["ratio"]
        assert isinstance(ratio, float)
        cells = [
            f"{value:.2f}" if isinstance(value, float) else f"{value}" for value in row.values()
        ]
        table.add_row(*cells, "met" if ratio <= GOAL_RATIO else "[red]missed[/red]")
    Console().print(table)


def main() -> None:
    global THREADS  # noqa: PLW0603
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, nargs="*", default=[10, 200, 2000])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch (default 1, as ranks have)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and no table")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    THREADS = arguments.threads
    if arguments.one:
        one(*arguments.one, arguments.rounds)
        return
    rows = []
    for megabytes in arguments.megabytes:
        rows.append(run(megabytes, FEW_TENSORS, arguments.rounds))
        if megabytes <= 200:
            rows.append(run(megabytes, SMALL_TENSORS, arguments.rounds))
    if arguments.json:
        print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg()[0], "rows": rows}))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
