"""The options with which a job is submitted anew where Slurm can't requeue it. Pure.

A batch script has only what its author wrote into it: options of the command line are read from the job.
The environment of the first submission is lost; Slurm does not tell it.
"""

import re
from collections.abc import Mapping
from typing import Final

_NOTHING: Final = frozenset({"", "(null)", "N/A", "UNLIMITED", "Partition_Limit", "0", "None"})
_OPTIONS: Final = (
    ("JobName", "job-name"),
    ("Partition", "partition"),
    ("Account", "account"),
    ("QOS", "qos"),
    ("TimeLimit", "time"),
    ("NumNodes", "nodes"),
    ("NumTasks", "ntasks"),
    ("CPUs/Task", "cpus-per-task"),
    ("WorkDir", "chdir"),
    ("StdOut", "output"),
    ("StdErr", "error"),
    ("ExcNodeList", "exclude"),
    ("ReqNodeList", "nodelist"),
    ("Features", "constraint"),
    ("Reservation", "reservation"),
    ("Licenses", "licenses"),
    ("TresPerNode", "gres"),
    ("Dependency", "dependency"),
    ("Nice", "nice"),
)
_USER: Final = re.compile(r"([^()\s]+)\((\d+)\)")


def options_of(fields: Mapping[str, str], comment: str, own_uid: int) -> tuple[str, ...]:
    """Return the options of `sbatch` for a job with these fields of `scontrol show job`."""
    words = [f"--comment={comment}", "--open-mode=append"]
    for name, option in _OPTIONS:
        value = fields.get(name, "")
        if value in _NOTHING or (option == "nodes" and "-" in value and not value[0].isdigit()):
            continue
        words.append(f"--{option}={value.removeprefix('gres:')}")
    user = _USER.fullmatch(fields.get("UserId", ""))
    group = _USER.fullmatch(fields.get("GroupId", ""))
    if user is not None and int(user.group(2)) != own_uid:
        words.append(f"--uid={user.group(2)}")  # Slurm takes it from root only
        if group is not None:
            words.append(f"--gid={group.group(2)}")
    return tuple(words)
