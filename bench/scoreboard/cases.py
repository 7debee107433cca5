"""What the scoreboard runs on: recorded cases with their truth, and cases with injected faults."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.scoreboard.hang_jobs import hang_cases
from bench.scoreboard.host_cases import FAULTS, host_job
from detectors.hang.standings import JobStandings
from detectors.slow.host_table import HostTable
from detectors.slow.work_table import TracedWorker, WorkTable
from rankmend.errors import ConfigError

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

KNOWN = Path(__file__).with_name("known.toml")
KINDS = ("slow", "hang", "hosts")
VERDICTS = ("culprits", "nobody", "unknown")  # the last two must name nobody
IDENTITIES = ("rank", "stage", "dp_rank", "worker", "host", "device")
TRUTH_KEYS = {"name", "kind", "data", "verdict", "class", "culprits", "onset", "end", "source"}
FACTORS = (1.15, 1.5, 2.5)
ONSETS = (0.0, 0.25, 0.5, 0.75)  # as a share of the recorded steps


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of a case."""

    name: str
    kind: str  # slow, hang or hosts
    culprits: tuple[tuple[tuple[str, Any], ...], ...]  # identities; empty: nobody
    class_name: str | None = None
    onset: int | None = None  # step; of hosts: unix seconds


@dataclass(frozen=True, slots=True)
class Case:
    """One case: data in a file or folder, or a table or job in memory."""

    truth: Truth
    is_recorded: bool
    path: Path | None = None
    table: WorkTable | None = None
    job: JobStandings | None = None
    hosts: HostTable | None = None


def is_same(identity: tuple[tuple[str, Any], ...], culprit: Mapping[str, Any]) -> bool:
    """Return whether a named culprit is the one of the truth, by what the truth tells of it."""
    return all(culprit.get(name) == value for name, value in identity)


def parse_truth(table: Mapping[str, Any], name: str) -> Truth:
    """Return the truth of one case, or raise ConfigError."""
    unknown = sorted(set(table) - TRUTH_KEYS)
    if unknown:
        raise ConfigError(f"{name}: unknown key {', '.join(unknown)}")
    if table.get("kind") not in KINDS:
        raise ConfigError(f"{name}: kind is {table.get('kind')!r}, not {', '.join(KINDS)}")
    if table.get("verdict") not in VERDICTS:
        raise ConfigError(f"{name}: verdict is {table.get('verdict')!r}, not {', '.join(VERDICTS)}")
    culprits = []
    for entry in table.get("culprits", []):
        entry = {"rank": entry} if isinstance(entry, int) else entry  # noqa: PLW2901
        wrong = sorted(set(entry) - set(IDENTITIES))
        if wrong or not entry:
            raise ConfigError(f"{name}: a culprit has {', '.join(IDENTITIES)}, not {entry!r}")
        culprits.append(tuple(sorted(entry.items())))
    if bool(culprits) != (table["verdict"] == "culprits"):
        raise ConfigError(f"{name}: verdict {table['verdict']} with {len(culprits)} culprits")
    return Truth(
        name=str(table.get("name", name)),
        kind=table["kind"],
        culprits=tuple(culprits),
        class_name=table.get("class"),
        onset=table.get("onset"),
    )


def recorded_cases(datasets: Path | None, truth_folder: Path | None) -> list[Case]:
    """Return the known cases whose data are there, and those of a folder with truth files.

    In ``truth_folder`` each case is a folder with truth.toml; `data` in it is a path from there,
    or from the data sets; without it the data are the folder itself.
    """
    cases = []
    if datasets is not None:
        for table in _load(KNOWN)["case"]:
            path = datasets / table["data"]
            if path.exists():
                cases.append(Case(parse_truth(table, table["name"]), True, path))
    if truth_folder is not None:
        files = sorted(truth_folder.rglob("truth.toml"))
        if not files:
            raise ConfigError(f"no truth.toml below {truth_folder}")
        cases.extend(_case(file, datasets) for file in files)
    return cases


def _case(file: Path, datasets: Path | None) -> Case:
    table = _load(file)
    truth = parse_truth(table, file.parent.name)
    if "data" not in table:
        return Case(truth, True, file.parent)
    roots = [file.parent, *([datasets] if datasets else [])]
    for root in roots:
        if (path := root / table["data"]).exists():
            return Case(truth, True, path)
    raise ConfigError(f"{file}: no data {table['data']!r} in {', '.join(map(str, roots))}")


def _load(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error


def datasets_folder() -> Path | None:
    named = os.environ.get("RANKMEND_DATASETS")
    return Path(named) if named else None


def injected_cases(trace: WorkTable | None) -> Iterator[Case]:
    """Return faults put into a recorded healthy trace, and whole synthetic jobs."""
    if trace is not None:
        yield from _into_trace(trace)
    yield from _synthetic()
    for hung in hang_cases():
        culprits = tuple((("rank", rank),) for rank in hung.culprits)
        yield Case(Truth(hung.name, "hang", culprits, hung.class_name), False, job=hung.job)
    yield from _hosts()


def slow_down(table: WorkTable, rows: list[int], factor: float, first: int) -> WorkTable:
    """Return the table with the work of some workers made slower from one column on."""
    seconds = table.seconds.copy()
    seconds[:, rows, first:] *= factor
    microbatches = table.microbatches
    if microbatches is not None:
        microbatches = microbatches.copy()
        microbatches[:, rows, first:] *= factor
    return replace(table, seconds=seconds, microbatches=microbatches)


def _into_trace(trace: WorkTable) -> Iterator[Case]:
    steps = len(trace.steps)
    for factor in FACTORS:
        for share in ONSETS:
            first = int(share * steps)
            when = f"{factor}x from step {trace.steps[first]}"
            for row, worker in enumerate(trace.workers):
                identity = (("dp_rank", worker.dp_rank), ("stage", worker.stage))
                truth = Truth(
                    f"ST {worker.name()} {when}", "slow", (identity,), onset=trace.steps[first]
                )
                yield Case(truth, False, table=slow_down(trace, [row], factor, first))
            for stage in sorted({worker.stage for worker in trace.workers}, key=str):
                rows = [n for n, worker in enumerate(trace.workers) if worker.stage == stage]
                truth = Truth(f"ST stage {stage} {when}", "slow", ())
                yield Case(truth, False, table=slow_down(trace, rows, factor, first))
            everyone = list(range(len(trace.workers)))
            truth = Truth(f"ST everyone {when}", "slow", ())
            yield Case(truth, False, table=slow_down(trace, everyone, factor, first))


def synthetic_job(seed: int, replicas: int, stages: int, steps: int, noise: float) -> WorkTable:
    """Return a healthy job: stages of unequal weight, drift of everyone, noise, single long steps."""
    random = np.random.default_rng(seed)
    weights = 0.5 * (1 + 0.4 * random.random(stages))
    workers = [
        TracedWorker(rank=dp * stages + stage, stage=stage, dp_rank=dp, peers=("stage", stage))
        for dp in range(replicas)
        for stage in range(stages)
    ]
    drift = np.exp(np.cumsum(0.01 * random.standard_normal(steps)))
    seconds = np.array([weights[worker.stage or 0] * drift for worker in workers])
    seconds *= np.exp(noise * random.standard_normal(seconds.shape))
    seconds *= np.where(random.random(seconds.shape) < 0.01, 2.0, 1.0)
    return WorkTable(tuple(workers), tuple(range(steps)), ("compute",), seconds[None])


def _synthetic() -> Iterator[Case]:
    for seed in range(24):
        random = np.random.default_rng(1_000 + seed)
        replicas, stages = int(random.integers(3, 17)), int(random.integers(1, 5))
        noise = (0.01, 0.03, 0.05)[seed % 3]
        table = synthetic_job(seed, replicas, stages, 60, noise)
        size = f"{replicas} replicas x {stages} stages, noise {noise:.0%}, seed {seed}"
        yield Case(Truth(f"synthetic healthy, {size}", "slow", ()), False, table=table)
        row = int(random.integers(len(table.workers)))
        first = int(random.integers(10, 45))
        factor = FACTORS[seed % len(FACTORS)]
        identity = (("rank", table.workers[row].rank),)
        truth = Truth(f"synthetic slow {factor}x, {size}", "slow", (identity,), onset=first)
        yield Case(truth, False, table=slow_down(table, [row], factor, first))
        yield from _slow_together(table, seed, size)
        lengths = np.exp(0.2 * random.standard_normal((replicas, 60)))
        unequal = table.seconds * np.array(
            [lengths[worker.dp_rank or 0] for worker in table.workers]
        )
        truth = Truth(f"synthetic sequence lengths, {size}", "slow", ())
        yield Case(truth, False, table=replace(table, seconds=unequal))


def _slow_together(table: WorkTable, seed: int, size: str) -> Iterator[Case]:
    """Return a job in which two or more replicas of one stage, at most half, slow down at one step."""
    random = np.random.default_rng(3_000 + seed)
    rows = [row for row, worker in enumerate(table.workers) if worker.stage == 0]
    if len(rows) < 5:
        return
    count = int(random.integers(2, len(rows) // 2 + 1))
    slow = sorted(int(row) for row in random.choice(rows, count, replace=False))
    first = int(random.integers(10, 45))
    factor = FACTORS[seed % len(FACTORS)]
    culprits = tuple((("rank", table.workers[row].rank),) for row in slow)
    truth = Truth(
        f"synthetic {count} slow together {factor}x, {size}", "slow", culprits, onset=first
    )
    yield Case(truth, False, table=slow_down(table, slow, factor, first))


def _hosts() -> Iterator[Case]:
    """Return jobs of 3 to 128 nodes: each fault on one node, on all of them, and none."""
    for seed in range(12):
        random = np.random.default_rng(2_000 + seed)
        nodes = int(random.choice([3, 4, 8, 16, 32, 64, 128]))
        noise = (0.5, 1.0, 2.0)[seed % 3]
        missing = (0.0, 0.1)[seed % 2]
        size = f"{nodes} nodes, noise x {noise}, {missing:.0%} missing, seed {seed}"
        healthy = host_job(seed, nodes, noise=noise, missing=missing)
        yield Case(Truth(f"hosts healthy, {size}", "hosts", ()), False, hosts=healthy)
        for fault in FAULTS:
            row = int(random.integers(nodes))
            onset_s = float(random.integers(20, 80)) * 15.0
            table = host_job(
                seed, nodes, noise=noise, missing=missing, fault=fault, rows=(row,), onset_s=onset_s
            )
            onset = int(table.times_s[0] + onset_s)
            identity = (("host", f"n{row}"),)
            truth = Truth(f"hosts {fault}, {size}", "hosts", (identity,), onset=onset)
            yield Case(truth, False, hosts=table)
        everyone = host_job(
            seed,
            nodes,
            noise=noise,
            fault="gpu slowdown",
            rows=tuple(range(nodes)),
            missing=missing,
        )
        yield Case(Truth(f"hosts all slower, {size}", "hosts", ()), False, hosts=everyone)
