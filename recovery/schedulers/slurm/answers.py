"""What Slurm reports of nodes and jobs, read from what `scontrol show` prints. Pure and tolerant.

Missing fields are empty: Slurm adds, renames and drops them from version to version. Users choose the
text of some fields (a job's name, paths, comments): such text never counts as another field.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rankmend.errors import SourceError
from recovery.schedulers.slurm.managed_node import ManagedNode

_FIELD: Final = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_/:&]*)=")
# Behind the reason: who set it and when, "[root@2026-11-25T14:28:05]".
_REASON: Final = re.compile(
    r"\sReason=(.*?)\s*\[([^\[\]@\s]*)@[^\[\]\s]*\](?=\s|$)(?!.*\[[^\[\]@\s]*@[^\[\]\s]*\])"
)
_FREE: Final = (
    "Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Comment", "AdminComment", "SystemComment",
    "Extra", "BurstBuffer", "MailUser", "Container", "ContainerID", "SubmitLine", "FailedNode",
)  # fmt: skip
_NOTHING: Final = frozenset({"(null)", "None", "N/A", "Unknown", "n/a"})
_DURATION: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")

LIVE: Final = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED",
     "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobInSlurm:
    number: str
    state: str  # PENDING, RUNNING, FAILED, ...
    reason: str = ""
    flags: frozenset[str] = frozenset()
    restarts: int = 0
    priority: int | None = None
    is_batch: bool = True
    may_requeue: bool = True
    nodes: str = ""  # a host list, as Slurm writes it
    excluded: str = ""  # a host list
    exit_code: str = "0:0"
    run_s: int = 0
    start: str = ""
    submitted: str = ""
    output: str = ""  # path of its standard output
    fields: Mapping[str, str] = field(default_factory=dict)  # all that Slurm printed

    @property
    def is_held(self) -> bool:
        return self.state == "PENDING" and self.priority == 0

    @property
    def is_live(self) -> bool:
        return self.state in LIVE


def read_nodes(text: str) -> dict[str, ManagedNode]:
    """Return the nodes of `scontrol show node --oneliner`, by name."""
    nodes = (_read_node(line) for line in text.splitlines() if line.startswith("NodeName="))
    return {node.name: node for node in nodes}


def _read_node(line: str) -> ManagedNode:
    reason = reason_by = ""
    match = _REASON.search(line)
    if match is not None:
        reason, reason_by = match.group(1), match.group(2)
        line = line[: match.start()]
    reported = _fields(line)
    base, *flags = reported.get("State", "").split("+")
    # Older versions write marks behind the state: IDLE*, ALLOCATED@.
    marks = {"*": "NOT_RESPONDING", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED"}
    while base and not base[-1].isalpha():
        flags.append(marks.get(base[-1], base[-1]))
        base = base[:-1]
    is_used = base in ("ALLOCATED", "MIXED", "COMPLETING") or "COMPLETING" in flags
    return ManagedNode(
        name=reported.get("NodeName", ""),
        base=base,
        flags=frozenset(flags),
        reason="" if reason in _NOTHING else reason,
        reason_by=reason_by,
        boot_unix_s=_seconds(reported.get("BootTime", "")),
        is_used=is_used or reported.get("CPUAlloc", "0") != "0",
    )


def read_jobs(text: str) -> list[JobInSlurm]:
    """Return the jobs of `scontrol show job`: several for an array, or for parts on different hardware."""
    blocks = re.split(r"\n(?=JobId=)", text.strip("\n"))
    return [_read_job(block) for block in blocks if block.startswith("JobId=")]


def _read_job(block: str) -> JobInSlurm:
    first, *lines = block.splitlines()
    number = first.partition("=")[2].partition(" ")[0]
    reported = {"JobName": first.partition("JobName=")[2]}
    for line in lines:
        name, _equals, value = line.strip().partition("=")
        found = {name: value} if name in _FREE else _fields(line)
        for key in found.keys() & reported.keys():
            raise SourceError(f"Slurm gives {key} of job {number} twice")
        reported.update(found)
    state, *flags = reported.get("JobState", "").split(",")
    priority = reported.get("Priority", "")
    return JobInSlurm(
        number=number,
        state=state,
        reason=_something(reported, "Reason"),
        flags=frozenset(flags),
        restarts=_number(reported.get("Restarts", "")),
        priority=int(priority) if priority.isdigit() else None,
        is_batch=reported.get("BatchFlag", "1") != "0",
        may_requeue=reported.get("Requeue", "1") != "0",
        nodes=_something(reported, "NodeList"),
        excluded=_something(reported, "ExcNodeList"),
        exit_code=reported.get("ExitCode", "0:0"),
        run_s=duration_s(reported.get("RunTime", "")),
        start=_something(reported, "StartTime"),
        submitted=_something(reported, "SubmitTime"),
        output=_something(reported, "StdOut"),
        fields=reported,
    )


def _fields(line: str) -> dict[str, str]:
    places = list(_FIELD.finditer(line))
    ends = [*(match.start() for match in places[1:]), len(line)][: len(places)]
    found: dict[str, str] = {}
    for match, end in zip(places, ends, strict=True):
        found.setdefault(match.group(1), line[match.end() : end].strip())
    return found


def _something(reported: Mapping[str, str], name: str) -> str:
    value = reported.get(name, "")
    return "" if value in _NOTHING else value


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _seconds(text: str) -> float | None:
    return float(text) if text.isdigit() else None


def duration_s(text: str) -> int:
    """Return the seconds of a duration such as ``1-02:03:04``; 0 of another word, such as UNLIMITED."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
