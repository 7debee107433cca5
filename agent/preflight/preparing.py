"""What a pre-flight check learns before its load, in children of its own: the node's facts, the baselines, its slot."""

import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from agent.preflight import baseline_file
from agent.preflight.children import ChildEnd, ChildEndKind, LoadChildren
from agent.preflight.fleet_slots import give_slot, sleep_until, start_delay_s, take_slot
from agent.preflight.node_facts import read_facts
from agent.preflight.policy import PreflightPolicy
from detectors.preflight.answers import StepEndKind, judge_end
from detectors.preflight.baseline import EMPTY, Baseline
from detectors.preflight.levels import PREPARE_S, REAP_S
from detectors.preflight.verdicts import CheckVerdict
from rankmend.agent_page import read_agent
from rankmend.errors import ConfigError, RankmendError, SourceError
from rankmend.printable import printable

GIVE_S: Final = 1.0
_ANSWER_S_MAX: Final = 1.0  # the agent of this machine answers from memory
_PAGE_BYTES_MAX: Final = 4_000_000
_FILES_SEEN_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class FlightPreparation:
    host_model: str = ""
    gpus: int = 0
    gpu_model: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)  # of NVIDIA, by name: the path
    gpu_power_watts: tuple[float, ...] = ()
    baseline: Baseline = EMPTY
    usual_file_bytes: int | None = None  # of the job's checkpoints
    slot: str | None = None  # which this node has taken
    is_full: bool = False  # too many nodes are checked
    jobs: tuple[str, ...] = ()  # whose ranks run here, as far as the node's agent knows
    verdicts: tuple[CheckVerdict, ...] = ()  # of what gave no answer
    problems: tuple[str, ...] = field(default=())  # for people: files that are no baselines


@dataclass(frozen=True, slots=True)
class WantedFacts:
    """What to learn."""

    node: str
    bound_s: float
    procfs: Path
    sysfs: Path
    environment: Mapping[str, str]
    baselines: Sequence[Path]
    own_baselines: Path  # this node's folder, which may not be there yet
    checkpoint_dir: Path | None
    policy: PreflightPolicy
    ranks_url: str | None = None  # page of this node's agent; None: ranks don't matter


def prepare(children: LoadChildren, wanted: WantedFacts) -> FlightPreparation:
    """Return what is known within `PREPARE_S`; what hangs is a verdict."""
    wait_s = PREPARE_S
    reads: dict[str, Any] = {
        "facts": partial(read_facts, wanted.procfs, wanted.sysfs, wanted.environment),
        "baselines": partial(_read_baselines, wanted.baselines, wanted.own_baselines),
    }
    if wanted.checkpoint_dir is not None:
        reads["checkpoint sizes"] = partial(_usual_file, wanted.checkpoint_dir)
    if wanted.policy.nodes_at_once or wanted.policy.start_within_s:
        reads["slot"] = partial(_begin, wanted)
        wait_s += wanted.policy.start_within_s
    if wanted.ranks_url is not None:
        reads["ranks"] = partial(_jobs_here, wanted.ranks_url)
    for name, read in reads.items():
        children.start_function(name, partial(_answer, read), wait_s)
    ends = children.wait(list(reads))
    found = {name: _answer_of(end) for name, end in ends.items()}
    facts, slot = found.get("facts") or {}, found.get("slot") or {}
    baseline = found.get("baselines") or {}
    verdicts = [_verdict(name, ends[name]) for name, item in found.items() if item is None]
    return FlightPreparation(
        str(facts.get("host_model", "unknown")),
        int(facts.get("gpus", 0)),
        str(facts.get("gpu_model", "")),
        dict(facts.get("tools", {})),
        tuple(facts.get("gpu_power_watts", ())),
        _decoded(baseline.get("baseline")),
        (found.get("checkpoint sizes") or {}).get("bytes"),
        slot.get("slot"),
        bool(slot.get("is_full")),
        tuple((found.get("ranks") or {}).get("jobs", ())),
        tuple(verdict for verdict in verdicts if verdict is not None),
        tuple(item["problem"] for item in found.values() if item and "problem" in item),
    )


def give_back(
    children: LoadChildren, policy: PreflightPolicy, prepared: FlightPreparation, node: str
) -> None:
    """Give the slot back, if the storage answers."""
    if prepared.slot is not None:
        folder, slot = Path(policy.slots_folder), prepared.slot
        children.start_function("slot back", partial(_give, folder, slot, node), GIVE_S)
        children.wait(["slot back"])


def _answer(read: Any, _lifeline: int) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = read()
        return found
    except RankmendError as error:
        return {"problem": str(error)}


def _answer_of(end: ChildEnd) -> dict[str, Any] | None:
    lines = end.lines()
    return lines[0] if end.kind is ChildEndKind.ENDED and lines else None


def _verdict(name: str, end: ChildEnd) -> CheckVerdict | None:
    kind = StepEndKind(end.kind.value)
    return judge_end(name, kind, end.status or 1, [], end.waits_in, end.errors, PREPARE_S)


def _jobs_here(url: str) -> Mapping[str, Any]:
    """Return the names of jobs with ranks on this node; none where no agent answers."""
    try:
        page = json.loads(read_agent(url, bytes_max=_PAGE_BYTES_MAX, timeout_s=_ANSWER_S_MAX))
        names = {printable(str(rank["job_name"])) for rank in page["ranks"]}
    except (SourceError, ValueError, KeyError, TypeError):
        return {}
    return {"jobs": sorted(names)}


def _read_baselines(paths: Sequence[Path], own: Path) -> Mapping[str, Any]:
    found = baseline_file.load([*paths, *([own] if own.is_dir() else [])])
    return {"baseline": baseline_file.encode(found).decode()}


def _decoded(text: object) -> Baseline:
    return baseline_file.decode(text.encode(), "the baseline") if isinstance(text, str) else EMPTY


def _usual_file(folder: Path) -> Mapping[str, Any]:
    """Return the size of the largest file of the newest checkpoint: what one rank or node writes at a time."""
    if not folder.is_dir():
        raise ConfigError(f"--checkpoint-dir {folder} is not a folder")
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    states = {entry: state for entry in entries if (state := _stat(entry)) is not None}
    newest = max(states, key=lambda entry: states[entry].st_mtime, default=None)
    if newest is None:
        return {}
    inside = (Path(base, name) for base, _folders, names in os.walk(newest) for name in names)
    found = [_stat(path) for path in (newest, *islice(inside, _FILES_SEEN_MAX))]
    sizes = [item.st_size for item in found if item is not None and stat.S_ISREG(item.st_mode)]
    return {"bytes": max(sizes)} if sizes else {}


def _stat(path: Path) -> os.stat_result | None:
    """Return None for what has gone: a job may rotate its checkpoints meanwhile, and a link lead nowhere."""
    try:
        return path.stat()
    except OSError:
        return None


def _begin(wanted: WantedFacts) -> Mapping[str, Any]:
    """Wait for this node's moment, and take a slot."""
    policy = wanted.policy
    sleep_until(time.monotonic() + start_delay_s(wanted.node, policy.start_within_s))
    if not policy.nodes_at_once:
        return {}
    folder = Path(policy.slots_folder)
    slot = take_slot(folder, policy.nodes_at_once, wanted.node, wanted.bound_s + REAP_S)
    return {"slot": slot, "is_full": slot is None}


def _give(folder: Path, slot: str, node: str, _lifeline: int) -> Mapping[str, Any]:
    give_slot(folder, slot, node)
    return {}
