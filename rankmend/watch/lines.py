"""The lines that switch watching on, for each place where jobs get their environment. Pure."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rankmend.errors import ConfigError

# Into a shell's `case`: nothing that it reads as a pattern or a command.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_SWITCH: Final = "/etc/rankmend/watch-off"


@dataclass(frozen=True, slots=True)
class Canary:
    """Whose jobs a TaskProlog has watched: of any of these users, and in any of these partitions. Both empty: all."""

    users: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()


def parse_names(text: str, kind: str) -> tuple[str, ...]:
    """Return the names of a list with commas, or raise ConfigError; ``kind``: of what they are."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"not the name of a {kind}: {name!r}")
    return names


class WatchPlace(Enum):
    SHELL = "shell"  # a shell, or an sbatch script
    TASKPROLOG = "taskprolog"  # Slurm's: every job of the cluster
    CONTAINER = "container"  # options of docker, podman or nerdctl
    POD = "pod"  # a container of a Kubernetes pod


def lines_for(
    place: WatchPlace,
    folder: str,
    canary: Canary | None = None,
    *,
    has_evidence: bool = False,
    is_any: bool = False,
    allows_drills: bool = False,
) -> str:
    """Return what to put there. An empty part of PYTHONPATH would be the working folder, so none is made.

    ``has_evidence``: ranks show their stacks when the job hangs; ``is_any``: programs without a launcher are watched, too;
    ``allows_drills``: `rankmend inject` may break the ranks.
    """
    path = shlex.quote(folder)
    wanted = (
        ("RANKMEND_WATCH", True),
        ("RANKMEND_WATCH_ANY", is_any),
        ("RANKMEND_WATCH_EVIDENCE", has_evidence),
        ("RANKMEND_WATCH_DRILLS", allows_drills),
    )
    names = [name for name, is_wanted in wanted if is_wanted]
    if place is WatchPlace.TASKPROLOG:
        return _task_prolog(path, canary or Canary(), names)
    if place is WatchPlace.CONTAINER:
        variables = " ".join(f"--env={name}=1" for name in names)
        return f"--volume={path}:{path}:ro --ipc=host --env=PYTHONPATH={path} {variables}\n"
    if place is WatchPlace.POD:
        return (
            "env:\n"
            f"  - {{name: PYTHONPATH, value: {folder}}}\n"
            + "".join(f'  - {{name: {name}, value: "1"}}\n' for name in names)
            + "volumeMounts:\n"
            f"  - {{name: rankmend-hook, mountPath: {folder}, readOnly: true}}\n"
            "  - {name: shared-memory, mountPath: /dev/shm}\n"
            "# and for the pod\n"
            "volumes:\n"
            f"  - {{name: rankmend-hook, hostPath: {{path: {folder}, type: Directory}}}}\n"
            "  - {name: shared-memory, hostPath: {path: /dev/shm, type: Directory}}\n"
        )
    exports = "".join(f"export {name}=1\n" for name in names)
    return f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}\n{exports}"


def _task_prolog(path: str, canary: Canary, switches: Sequence[str]) -> str:
    """Return a script that ends with 0, whatever there is: Slurm would end the task."""
    lines = [
        "#!/bin/sh",
        "# TaskProlog: Slurm takes over the variables that it prints. It ends with 0, so that it never fails a job.",
        f"[ -e {_SWITCH} ] && exit 0",
        "# A folder that is gone, or on a server that does not answer, is left out.",
        f"{{ timeout -s KILL 5 test -r {path}/sitecustomize.py; }} 2>/dev/null || exit 0",
    ]
    lists: Sequence[tuple[str, tuple[str, ...]]] = (
        ("SLURM_JOB_USER", canary.users),
        ("SLURM_JOB_PARTITION", canary.partitions),
    )
    if any(names for _variable, names in lists):
        lines.append("chosen=")
        for variable, names in lists:
            if names:
                lines.append(f'case "${variable}" in {"|".join(names)}) chosen=1 ;; esac')
        lines.append('[ -n "$chosen" ] || exit 0')
    lines += [
        f'echo "export PYTHONPATH="{path}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        *(f"echo export {name}=1" for name in switches),
        "exit 0",
    ]
    return "\n".join(lines) + "\n"
