"""Reads what `detectors/doctor/slurm.py` judges. Asks slurmctld, bounded by `agent/slurm/commands.py`."""

import shutil
import time
from pathlib import Path
from typing import Final

from agent.doctor.places import Places
from agent.slurm.commands import PLACES, NodeSlurmCommands
from detectors.doctor.slurm import SlurmFacts
from rankmend.errors import SourceError
from rankmend.node import node_name

ANSWER_S_MAX: Final = 3.0
_SIGNS: Final = (
    "etc/slurm/slurm.conf",
    "etc/slurm-llnl/slurm.conf",
    "run/slurm/conf/slurm.conf",
    "run/slurmd.pid",
)
_MUNGE: Final = "run/munge/munge.socket.2"


def read_slurm(
    places: Places, node: str | None = None, answer_s: float = ANSWER_S_MAX
) -> SlurmFacts:
    variables = places.environment
    conf = variables.get("SLURM_CONF", "")
    # /usr/local/bin and others of PLACES count for commands that slurmd starts; for a tree only the PATH does
    usual = PLACES if places.root == Path("/") else ()
    scontrol = shutil.which("scontrol", path=":".join((variables.get("PATH", ""), *usual)))
    is_meant = any(name.startswith(("SLURM_", "SLURMD_")) for name in variables) or any(
        places.at(sign).exists() for sign in _SIGNS
    )
    facts = SlurmFacts(
        is_meant=is_meant,
        conf=conf,
        has_conf=not conf or Path(conf).is_file(),
        scontrol=scontrol,
        has_munge=places.at(_MUNGE).exists(),
    )
    if scontrol is None:
        return facts
    name = node_name(node, variables)
    error, record = "", None
    try:
        record = NodeSlurmCommands(time.monotonic() + answer_s, variables).node(name)
    except SourceError as failure:
        error = str(failure)
    return SlurmFacts(
        is_meant=is_meant or record is not None,  # programs alone, of a package, make no cluster
        conf=conf,
        has_conf=facts.has_conf,
        scontrol=scontrol,
        answer_error=error,
        node=name,
        node_state=record.state if record else "",
        is_drained=record.is_drained if record else False,
        drain_reason=record.reason if record else "",
        has_munge=facts.has_munge,
    )
