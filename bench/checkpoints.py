"""How fast checkpoints are validated: MB/s by kind, and the cost of a look at unchanged ones.

    python bench/checkpoints.py [--megabytes 512] [--folder /tmp]

Files are read once before, so that the figures are those of the code and the page cache, not of
a disk. Medians of 5.
"""

import argparse
import statistics
import struct
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from recovery.checkpoints.finder import CheckpointFinder
from recovery.messages.candidates import CheckpointSettings

REPEATS = 5


def write_torch_layout(path: Path, size_bytes: int, members: int) -> None:
    """Write a zip with the members of torch.save: the same work for the validator."""
    data = np.random.default_rng(1).bytes(size_bytes // members)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        for number in range(members):
            file.writestr(f"archive/data/{number}", data)


def write_npz(path: Path, size_bytes: int, save: Callable[..., None]) -> None:
    values = np.random.default_rng(1).integers(0, 255, size_bytes // 8)
    with path.open("wb") as file:
        save(file, step=np.int64(1), w=values)


def write_safetensors(path: Path, size_bytes: int) -> None:
    header = f'{{"w":{{"dtype":"U8","shape":[{size_bytes}],"data_offsets":[0,{size_bytes}]}}}}'
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header.encode())
        file.truncate(file.tell() + size_bytes)


def write_shards(path: Path, size_bytes: int) -> None:
    path.mkdir()
    for rank in range(4):
        single = path / "single"
        with (path / f"__{rank}_0.distcp").open("wb") as shard:
            write_torch_layout(single, size_bytes // 4 // 100, 1)
            shard.write(single.read_bytes() * 100)
        single.unlink()
    (path / ".metadata").write_bytes(b"\x80\x02N.")


def time_look(folder: Path, finder: CheckpointFinder | None = None) -> float:
    finder = finder or CheckpointFinder(folder, CheckpointSettings(enough=10**6))
    began_s = time.perf_counter()
    verdicts = finder.find(time.time(), timeout_s=600)
    spent_s = time.perf_counter() - began_s
    assert all(verdict.is_valid for verdict in verdicts), verdicts
    return spent_s


def measure(folder: Path, megabytes: int) -> None:
    size_bytes = megabytes << 20
    kinds: dict[str, Callable[[Path], None]] = {
        "torch.save, 8 tensors": lambda path: write_torch_layout(path, size_bytes, 8),
        "torch.save, 20,000 tensors": lambda path: write_torch_layout(path, size_bytes, 20_000),
        "npz": lambda path: write_npz(path, size_bytes, np.savez),
        "npz, deflated": lambda path: write_npz(path, size_bytes // 4, np.savez_compressed),
        "DCP folder, 4 x 100 items": lambda path: write_shards(path, size_bytes),
        "safetensors (no checksum)": lambda path: write_safetensors(path, size_bytes),
    }
    for kind, write in kinds.items():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            write(Path(scratch) / "step-1")
            files = [path for path in Path(scratch).rglob("*") if path.is_file()]
            total_bytes = sum(path.stat().st_size for path in files)
            time_look(Path(scratch))
            spent_s = statistics.median(time_look(Path(scratch)) for _ in range(REPEATS))
            print(f"{kind:28} {total_bytes / spent_s / 1e6:10,.0f} MB/s {spent_s * 1e3:10.2f} ms")
    measure_unchanged(folder)


def measure_unchanged(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for step in range(20):
            write_npz(Path(scratch) / f"step-{step}.npz", 80_000, np.savez)
        finder = CheckpointFinder(Path(scratch), CheckpointSettings(enough=10**6))
        time_look(Path(scratch), finder)
        spent_s = statistics.median(time_look(Path(scratch), finder) for _ in range(REPEATS))
        print(f"{'20 unchanged npz files':28} {'':15} {spent_s * 1e3:10.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    measure(arguments.folder, arguments.megabytes)


if __name__ == "__main__":
    main()
