"""The lines that switch watching on, for each place where jobs get their environment. Pure."""

import shlex
from enum import Enum


class WatchPlace(Enum):
    SHELL = "shell"  # a shell, or an sbatch script
    TASKPROLOG = "taskprolog"  # Slurm's: every job of the cluster
    CONTAINER = "container"  # options of docker, podman or nerdctl
    POD = "pod"  # a container of a Kubernetes pod


def lines_for(place: WatchPlace, folder: str) -> str:
    """Return what to put there. An empty part of PYTHONPATH would be the working folder, so none is made."""
    path = shlex.quote(folder)
    if place is WatchPlace.TASKPROLOG:
        return (
            "#!/bin/sh\n"
            "# TaskProlog: Slurm takes over the variables that it prints.\n"
            f'echo "export PYTHONPATH="{path}"${{PYTHONPATH:+:$PYTHONPATH}}"\n'
            "echo export RANKMEND_WATCH=1\n"
        )
    if place is WatchPlace.CONTAINER:
        return (
            f"--volume={path}:{path}:ro --ipc=host --env=PYTHONPATH={path} --env=RANKMEND_WATCH=1\n"
        )
    if place is WatchPlace.POD:
        return (
            "env:\n"
            f"  - {{name: PYTHONPATH, value: {folder}}}\n"
            '  - {name: RANKMEND_WATCH, value: "1"}\n'
            "volumeMounts:\n"
            f"  - {{name: rankmend-hook, mountPath: {folder}, readOnly: true}}\n"
            "  - {name: shared-memory, mountPath: /dev/shm}\n"
            "# and for the pod\n"
            "volumes:\n"
            f"  - {{name: rankmend-hook, hostPath: {{path: {folder}, type: Directory}}}}\n"
            "  - {name: shared-memory, hostPath: {path: /dev/shm, type: Directory}}\n"
        )
    return f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}\nexport RANKMEND_WATCH=1\n"
