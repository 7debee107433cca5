"""Command lines that mean the same to torchrun and to `rankmend run`, and what a launcher made of each.

`tests/fixtures/torchrun/recorded.json` has torchrun's results. `python -m tests.support.torchrun_table` records them
anew with the torchrun of its interpreter.
"""

import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final

from tests.support import forked_cli
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port

ROOT: Final = Path(__file__).parents[2]
FIXTURES: Final = ROOT / "tests/fixtures/torchrun"
RECORDED: Final = FIXTURES / "recorded.json"
TORCHRUN: Final = (sys.executable, "-m", "torch.distributed.run")
RECORDED_AT_ONCE: Final = 4
RANKMEND: Final = (sys.executable, "-m", "rankmend.cli", "run")
# What a launcher promises to its ranks. MASTER_PORT differs from run to run.
VARIABLES: Final = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    *("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_VISIBLE_DEVICES", "SENTINEL"),
)
_OWN: Final = ("PET_", "TORCHELASTIC_", "TORCH_ELASTIC_", "RANKMEND_", "SLURM_", "OMP_", "CUDA_")
# A line of a rank, and none of the launcher's own that quotes it.
_LINE: Final = re.compile(
    r"^(?!rankmend: )(?P<prefix>\[[^\]]*\]:? ?)?(?P<text>.*?case: .*)$", re.MULTILINE
)


class Difference(Enum):
    """Why a row may differ; docs/use/torchrun.md has a line with the reason for each.

    Those that hold for all rows (the prefix, 10,000 restarts, the names of run and host, the store) are in `expected_of`.
    """

    EXIT_CODE = "exit code"
    USAGE = "usage"
    LOG_FOLDER = "log folder"
    ERROR_FILE = "error file"
    NO_RETRY = "no retry"
    MASTER_PORT = "master port"
    SAME_ERROR = "same error"
    STOP_SIGNAL = "stop signal"
    STANDALONE = "standalone"


class CaseTier(Enum):
    """Where a row can be compared."""

    RECORDED = "recorded"  # with what torchrun was recorded to do, on any machine
    LIVE = "live"  # only with torchrun beside it: the machine decides, or the rows need PyTorch


@dataclass(frozen=True, slots=True)
class LauncherCase:
    """One row. ``{port}``, ``{out}``, ``{logs}`` and ``{fixtures}`` in words and variables are filled in."""

    name: str
    upstream: str  # test or page of PyTorch that has this line or its like
    options: tuple[str, ...]
    target: tuple[str, ...] = ("{fixtures}/probe.py",)
    variables: Mapping[str, str] = field(default_factory=dict)
    launchers: tuple[tuple[str, ...], ...] = ((),)  # further options of each launcher on this host
    signal: int = 0  # sent to the first launcher once all ranks hold
    holds: int = 0  # so many
    differs: frozenset[Difference] = frozenset()
    exits: tuple[int, ...] = ()  # of rankmend, where they differ
    ranks: tuple[str, ...] | None = (
        None  # rank-restart of those that rankmend starts, where they differ
    )
    marks: tuple[str, ...] | None = None  # that ranks leave under rankmend, where they differ
    tier: CaseTier = CaseTier.RECORDED


@dataclass(slots=True)
class CaseResult:
    """What a launcher made of a case."""

    exits: list[int]
    ranks: dict[str, dict[str, Any]]  # rank-restart: its variables and arguments
    out: list[str]
    err: list[str]
    prefixes: list[str]  # of the lines shown
    logs: dict[str, list[str]]
    marks: list[str]  # files that ranks have left


def run_case(case: LauncherCase, program: Sequence[str], folder: Path) -> CaseResult:
    """Run the line and return what came of it; ``folder`` is empty."""
    out, logs = folder / "out", folder / "logs"
    out.mkdir()
    places = {
        "port": str(free_port()),
        "out": str(out),
        "logs": str(logs),
        "fixtures": str(FIXTURES),
    }

    def fill(words: Iterable[str]) -> list[str]:
        return [_filled(word, places) for word in words]

    base = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
    base.update(CASE_OUT=str(out), SENTINEL="kept", PYTHONPATH=str(ROOT), PYTHONWARNINGS="ignore")
    base.update(zip(case.variables, fill(case.variables.values()), strict=True))
    base["RANKMEND_STATE_DIR"] = str(folder / "state")
    running: list[forked_cli.ForkedProcess] = []
    try:
        for number, more in enumerate(case.launchers):
            line = [*program, *fill(case.options), *fill(more), *fill(case.target)]
            out_file, err_file = (folder / f"{name}-{number}" for name in ("stdout", "stderr"))
            with out_file.open("wb") as stdout, err_file.open("wb") as stderr:
                running.append(_start(line, base, stdout, stderr))
        if case.signal:
            eventually(lambda: len(list(out.glob("holds-*"))) == case.holds, "all ranks hold")
            running[0].send_signal(case.signal)
        exits = sorted(one.wait(DEADLINE_S) for one in running)
    finally:
        for one in running:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()
    return _read(exits, out, logs, folder, places["port"])


def _start(
    line: Sequence[str], environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
) -> forked_cli.ForkedProcess:
    streams = {"stdout": stdout, "stderr": stderr}
    if tuple(line[: len(RANKMEND)]) == RANKMEND:
        words = line[len(RANKMEND) - 1 :]
        return forked_cli.start(words, cwd=FIXTURES, environment=environment, **streams)
    assert tuple(line[: len(TORCHRUN)]) == TORCHRUN
    words = line[len(TORCHRUN) :]
    script = FIXTURES / "torchrun.py"
    return forked_cli.start_script(script, words, cwd=FIXTURES, environment=environment, **streams)


def _filled(word: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _read(exits: list[int], out: Path, logs: Path, folder: Path, port: str) -> CaseResult:
    ranks = {}
    for path in sorted(out.glob("rank-*.json")):
        body = json.loads(path.read_text())
        found = {name: body["env"].get(name) for name in VARIABLES}
        if found["MASTER_ADDR"] in {socket.gethostname(), socket.getfqdn()} - {"localhost"}:
            found["MASTER_ADDR"] = HOST
        found["MASTER_PORT"] = "given" if body["env"]["MASTER_PORT"] == port else "another"
        found["has_error_file"] = bool(body["env"].get("TORCHELASTIC_ERROR_FILE"))
        found["name"] = body["name"]
        found["argv"] = [word.replace(str(out), "OUT") for word in body["argv"]]
        found["cwd"] = Path(body["cwd"]).name
        ranks[path.stem.removeprefix("rank-")] = found
    shown: dict[str, list[str]] = {"stdout": [], "stderr": []}
    prefixes = set()
    for name, lines in shown.items():
        for path in sorted(folder.glob(f"{name}-*")):
            for match in _LINE.finditer(path.read_text(errors="replace")):
                lines.append(match["text"].strip())
                prefixes.add(match["prefix"] or "")
        lines.sort()
    files = {}
    for path in sorted(logs.rglob("*.log")):
        lines = [one["text"].strip() for one in _LINE.finditer(path.read_text(errors="replace"))]
        files["/".join(("RUN", *path.relative_to(logs).parts[1:]))] = lines
    marks = sorted(one.name for one in out.iterdir() if not one.name.startswith("rank-"))
    return CaseResult(
        exits, ranks, shown["stdout"], shown["stderr"], sorted(prefixes), files, marks
    )


def expected_of(case: LauncherCase, torchrun: CaseResult) -> CaseResult:
    """Return what `rankmend run` has to make of a case, from what torchrun made of it."""
    expected = replace(torchrun)
    words = [*case.options, *(word for more in case.launchers for word in more), *case.variables]
    ranks = {name: dict(found) for name, found in torchrun.ranks.items()}
    for found in ranks.values():
        if not any(re.match(r"--max.r|PET_MAX_RESTARTS", word) for word in words):
            found["TORCHELASTIC_MAX_RESTARTS"] = "10000"
        if Difference.MASTER_PORT in case.differs:
            found["MASTER_PORT"] = "another"
        if found["MASTER_ADDR"] in (HOST, "localhost"):  # the name that its host has for itself
            is_given = "--master-addr=localhost" in case.options
            found["MASTER_ADDR"] = "localhost" if is_given else "127.0.0.1"
    if case.ranks is not None:
        ranks = {name: ranks.get(name, {}) for name in case.ranks}
        numbers = [name.partition("-")[0] for name in case.ranks]
        expected.out = sorted(f"case: out {number}" for number in numbers)
        expected.err = sorted(f"case: err {number}" for number in numbers)
    expected.ranks = ranks
    if case.exits:
        expected.exits = list(case.exits)
    if case.marks is not None:
        expected.marks = list(case.marks)
    if PREFIX_TEMPLATE not in case.variables:
        numbers = sorted({line.split()[-1] for line in (*torchrun.out, *torchrun.err)}, key=str)
        expected.prefixes = [f"[rank {number}] " for number in numbers if number.isdigit()]
    expected.logs = {
        re.sub(r"attempt_(\d+)", lambda one: f"attempt_{int(one[1]) + 1}", name): lines
        for name, lines in torchrun.logs.items()
    }
    return expected


def comparable(case: LauncherCase, result: CaseResult) -> dict[str, Any]:
    """Return what of a result has to be equal: without names that differ from run to run."""
    body = asdict(result)
    # torchrun makes an id of its own where one node is to meet nobody.
    has_id = all(
        any(name in word for word in _words(case)) for name in ("--rdzv-id", "--rdzv-endpoint")
    )
    for found in body["ranks"].values():
        found.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # docs/use/several-nodes.md
        if not has_id or "--standalone" in case.options:
            found["TORCHELASTIC_RUN_ID"] = bool(found.get("TORCHELASTIC_RUN_ID"))
    # A job that is given up shows the first rank's error once more at its end, without a prefix.
    body["err"] = sorted(set(body["err"]))
    body["prefixes"] = [one for one in body["prefixes"] if one] or body["prefixes"]
    if len(case.launchers) > 1:  # which launcher has which place is open
        ranks = body["ranks"].values()
        places = ("RANK", "ROLE_RANK", "GROUP_RANK")
        body["places"] = sorted(
            (found["TORCHELASTIC_RESTART_COUNT"], found["ROLE_NAME"], int(found["ROLE_RANK"]))
            for found in ranks
        )
        body["groups"] = sorted({found["GROUP_RANK"] for found in ranks})
        body["names"] = sorted(body["ranks"])
        body["ranks"] = sorted(
            json.dumps({name: value for name, value in found.items() if name not in places})
            for found in ranks
        )
    return body


def _words(case: LauncherCase) -> list[str]:
    return [*case.options, *case.variables, *(word for more in case.launchers for word in more)]


HOST: Final = "HOST"
PREFIX_TEMPLATE: Final = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


def load_recorded() -> dict[str, CaseResult]:
    """Return what torchrun was recorded to make of each case."""
    body = json.loads(RECORDED.read_text())
    return {name: CaseResult(**found) for name, found in body["cases"].items()}


def record(cases: Sequence[LauncherCase], names: Sequence[str]) -> None:
    """Record what torchrun makes of the cases of these names, or of all, several at a time."""
    known = {case.name: case for case in cases if case.tier is CaseTier.RECORDED}
    kept = json.loads(RECORDED.read_text())["cases"] if RECORDED.exists() else {}
    lock = threading.Lock()

    def make(case: LauncherCase) -> None:
        with tempfile.TemporaryDirectory() as folder:
            found = asdict(run_case(case, TORCHRUN, Path(folder)))
        with lock:
            kept[case.name] = found
            results = {name: kept[name] for name in sorted(kept.keys() & known.keys())}
            body = {"torch": version("torch").partition("+")[0], "cases": results}
            RECORDED.write_text(json.dumps(body, indent=1) + "\n")
            print(case.name, file=sys.stderr, flush=True)

    with ThreadPoolExecutor(RECORDED_AT_ONCE) as pool:
        for done in [pool.submit(make, known[name]) for name in names or known]:
            done.result()
