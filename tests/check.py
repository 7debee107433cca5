"""What `make check` runs: format, lint, types and the unit tests, side by side, with what each has cost.

    python -m tests.check [--changed] [--without-lint]

The unit tests run in as many processes as there are cores, each with files of its own: workers that share all files
would each import all of them, which costs as much as the tests. The files are dealt out by the seconds that they took last time. ``--changed`` runs the unit tests of what differs from
the last commit: the changed test files, and those that import a changed module, themselves or through `tests/support`.
"""

import argparse
import ast
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from tests.support.file_seconds import known_seconds
from tests.support.tiers import Tier, tier_of

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PACKAGES = ("agent", "detectors", "recovery", "rankmend", "bench", "deploy", "docs", "examples")
# A change here may change every test.
FOR_ALL = {"pyproject.toml", "tests/conftest.py", "tests/support/tiers.py"}
PYTEST_NOTHING_COLLECTED = 5
LARGE_KNOWN_SHARE = 12.0  # where the times of the files are known
LARGE_SHARE = 4.0  # of a large shard, in small ones: each shard imports rankmend anew, 1.5 s


@dataclass
class Step:
    name: str
    command: Sequence[str]
    output: str = ""
    seconds: float = 0.0
    code: int = 0


def unit_files() -> list[Path]:
    """Return the files of the unit tier, the largest first."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if tier_of(path) is Tier.UNIT]
    return sorted(files, key=lambda path: (-path.stat().st_size, path))


def shards(
    files: Sequence[Path], count: int, seconds: Mapping[str, float] = MappingProxyType({})
) -> list[list[Path]]:
    """Deal the files out to ``count`` large shards and as many small ones; whoever has done a large one first takes a small one.

    ``seconds``: what each file took, by its path relative to the root. Where that is not known the bytes of a file stand for it, which tell little:
    then the small ones are larger.
    """
    weights = {file: seconds.get(file.relative_to(ROOT).as_posix(), 0.0) for file in files}
    known_bytes = sum(file.stat().st_size for file, weight in weights.items() if weight) or 1
    a_byte = sum(weights.values()) / known_bytes or 1.0
    weights = {file: weight or a_byte * file.stat().st_size for file, weight in weights.items()}
    large = LARGE_SHARE if len(seconds) < len(files) / 2 else LARGE_KNOWN_SHARE
    shares = [large] * count + [1.0] * count
    dealt: list[list[Path]] = [[] for _ in shares]
    filled = [0.0] * len(shares)
    for file in sorted(files, key=weights.__getitem__, reverse=True):
        least = filled.index(min(filled))
        dealt[least].append(file)
        filled[least] += weights[file] / shares[least]
    return [shard for shard in dealt if shard]


def changed_files() -> list[str]:
    """Return what differs from the last commit, new files included, relative to the repository."""
    command = ["git", "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [entry[3:] for entry in printed.split("\0") if entry]


@cache
def imports_of(file: Path) -> set[str]:
    """Return the modules that a file imports, and the names that it imports from them as modules."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def affected(files: Iterable[Path], changed: Sequence[str]) -> list[Path]:
    """Return the test files that a change concerns, as the module's docstring says."""
    files = list(files)
    if FOR_ALL.intersection(changed):
        return files
    modules = {module_of(path) for path in changed if path.endswith(".py")}
    support = [*(ROOT / "tests/support").rglob("*.py"), *(ROOT / "tests").rglob("conftest.py")]
    known = {path: imports_of(path) for path in support}
    while True:  # support that imports what has changed counts as changed
        more = {
            module_of(path.relative_to(ROOT).as_posix())
            for path, imported in known.items()
            if imported & modules
        }
        if more <= modules:
            break
        modules |= more
    return [
        file
        for file in files
        if module_of(file.relative_to(ROOT).as_posix()) in modules or imports_of(file) & modules
    ]


def run_all(lanes: Sequence[Sequence[Step]], others: Sequence[Step] = (), width: int = 1) -> None:
    """Run the lanes side by side, the steps of a lane one after the other, and print each step as it ends.

    ``others``: run beside them in their order, as many at a time as ``width``.
    """
    waiting = list(others)
    running: list[tuple[subprocess.Popen[bytes], Step, list[Step], float, Path]] = []
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:

        def begin(lane: list[Step]) -> None:
            step = lane.pop(0)
            log = Path(folder) / f"{next(numbers)}.log"
            with log.open("wb") as file:
                process = subprocess.Popen(
                    step.command,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            running.append((process, step, lane, time.monotonic(), log))

        for lane in [*lanes, *([] for _slot in range(min(width, len(waiting))))]:
            begin(list(lane) if lane else [waiting.pop(0)])
        while running:
            pid, status = os.wait()
            ended = next(entry for entry in running if entry[0].pid == pid)
            running.remove(ended)
            process, step, lane, began_s, log = ended
            process.returncode = step.code = os.waitstatus_to_exitcode(status)
            step.seconds = time.monotonic() - began_s
            step.output = log.read_text(errors="replace")
            if step.code not in (0, PYTEST_NOTHING_COLLECTED):
                sys.stdout.write(step.output)
            last = next(iter(step.output.strip().splitlines()[-1:]), "")
            print(f"{step.name:12} {step.seconds:6.1f} s  exit {step.code}  {last}", flush=True)
            if not lane and step in others and waiting:
                lane = [waiting.pop(0)]
            if lane:
                begin(lane)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--without-lint", action="store_true")
    options = parser.parse_args()
    files = unit_files()
    if options.changed:
        files = affected(files, changed_files())
    lint = [
        Step("format", [str(BIN / "ruff"), "format", "--check", "--quiet", "."]),
        Step("lint", [str(BIN / "ruff"), "check", "--quiet", "."]),
        Step("types", [str(BIN / "mypy")]),
    ]
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "--no-header",
        "--tier",
        "unit",
        "-p",
        "tests.support.file_seconds",
    ]
    width = os.cpu_count() or 1
    units = [
        Step(f"unit {number}", [*pytest, f"--shard={number}", *map(str, shard)])
        for number, shard in enumerate(shards(files, width, known_seconds(ROOT)), 1)
    ]
    lanes = [] if options.without_lint else [lint]
    began_s = time.monotonic()
    run_all(lanes, units, width)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(f"{'all':12} {time.monotonic() - began_s:6.1f} s  {cpu_s:.0f} CPU-seconds")
    codes = {step.code for lane in [*lanes, units] for step in lane}
    return 0 if codes <= {0, PYTEST_NOTHING_COLLECTED} else 1


if __name__ == "__main__":
    sys.exit(main())
