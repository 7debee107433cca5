"""What rankmend needs of Slurm on this host. Pure."""

from dataclasses import dataclass
from typing import Final

from detectors.doctor.check import (
    HostCheck,
    HostPart,
    HostVerdict,
    broken,
    lacking,
    not_applicable,
    ok,
    quoted,
)


@dataclass(frozen=True, slots=True)
class SlurmFacts:
    is_meant: bool  # a variable of Slurm, its configuration or slurmd is here
    conf: str = ""  # SLURM_CONF
    has_conf: bool = True  # whether that file is there
    scontrol: str | None = None
    answer_error: str = ""  # why slurmctld did not answer about this node
    node: str = ""
    node_state: str = ""
    is_drained: bool = False
    drain_reason: str = ""
    has_munge: bool = True  # its socket


_NO_SLURM: Final = "no sign of Slurm"


def _conf(facts: SlurmFacts) -> HostVerdict:
    if not facts.is_meant:
        return not_applicable(_NO_SLURM)
    if not facts.conf:
        return ok("SLURM_CONF is not set: Slurm's own default")
    if facts.has_conf:
        return ok(facts.conf)
    return broken(
        f"SLURM_CONF is {facts.conf}, which is not there",
        "unset SLURM_CONF  # or mount the file into the container",
    )


def _commands(facts: SlurmFacts) -> HostVerdict:
    if not facts.is_meant:
        return not_applicable(_NO_SLURM)
    if facts.scontrol is not None:
        return ok(facts.scontrol)
    return lacking(
        "no scontrol in PATH or in the usual folders",
        "export PATH=$PATH:/opt/slurm/bin  # or mount Slurm's programs into the container",
    )


def _answer(facts: SlurmFacts) -> HostVerdict:
    if not facts.is_meant or facts.scontrol is None:
        return not_applicable(
            _NO_SLURM if not facts.is_meant else "no scontrol to query Slurm with"
        )
    if facts.answer_error:
        mend = "scontrol ping"
        if not facts.has_munge:
            mend = "systemctl enable --now munge  # or mount /run/munge into the container"
        return broken(facts.answer_error, mend)
    return ok(f"{facts.node}: {facts.node_state}")


def _drained(facts: SlurmFacts) -> HostVerdict:
    if not facts.node_state:
        return not_applicable("Slurm was not queried, or does not answer")
    if facts.is_drained:
        reason = f" ({facts.drain_reason})" if facts.drain_reason else ""
        return lacking(
            f"{facts.node} is drained{reason}",
            f"scontrol update nodename={quoted(facts.node)} state=resume  # once it is mended",
        )
    return ok(facts.node_state)


_P: Final = HostPart.SLURM
SLURM_CHECKS: Final[tuple[HostCheck[SlurmFacts], ...]] = (
    HostCheck("slurm_conf", _P, "SLURM_CONF", "every command of Slurm", _conf),
    HostCheck(
        "slurm_commands",
        _P,
        "Slurm's commands",
        "drains, requeues, and the clean-up after jobs",
        _commands,
    ),
    HostCheck(
        "slurm_answer", _P, "slurmctld answers", "drains, requeues, and spare nodes", _answer
    ),
    HostCheck("slurm_node", _P, "node in service", "new jobs on this node", _drained),
)
