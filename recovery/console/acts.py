"""What people can have done from a page: which words ask for it, and what will happen. Pure."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

REASON_CHARACTERS_MAX: Final = 1000  # as recovery.api.wire.Reason


@dataclass(frozen=True, slots=True)
class MayAct:
    """On what a viewer may act, of what he sees. A token that is limited to a job reaches no whole node, and the reverse."""

    cluster: bool = False
    job: bool = False
    node: bool = False

    def on(self, scope: str) -> bool:
        """Return whether he may pause or resume ``cluster``, ``job:UUID`` or ``node:NAME``."""
        kind = scope.partition(":")[0]
        return self.job if kind == "job" else self.node if kind == "node" else self.cluster


EVERYTHING: Final = MayAct(cluster=True, job=True, node=True)


class ActName(Enum):
    APPROVE = "approve"
    REJECT = "reject"
    ACKNOWLEDGE = "acknowledge"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    UNDRAIN = "undrain"


@dataclass(frozen=True, slots=True)
class ActForm:
    """One act as its page shows it. ``{name}`` in a text is what the page was asked for."""

    title: str
    button: str
    effects: tuple[str, ...]  # what will happen, a sentence each
    needs: tuple[str, ...]  # what the page must be asked with
    command: str  # what does the same in a terminal, but for the reason
    example: str  # of a reason; empty: the command takes none
    takes: tuple[str, ...] = ()  # what it may be asked with, too
    is_grave: bool = False


@dataclass(frozen=True, slots=True)
class AskedAct:
    """An act with what it concerns, the person's reason, and a key: the same key is the same act."""

    name: ActName
    about: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    key: str = ""


FORMS: Final[Mapping[ActName, ActForm]] = {
    ActName.APPROVE: ActForm(
        "Approve the plan of {incident}",
        "Approve: carry out the plan",
        (
            "The controller carries out this plan now, and no other one.",
            "An approval also releases a plan that a pause or a dry run holds.",
        ),
        ("job", "incident"),
        "rankmend approve {which}",
        "",
        takes=("plan",),
    ),
    ActName.REJECT: ActForm(
        "Reject the plan of {incident}",
        "Reject: end the job",
        (
            "The incident is given up, and the job ends.",
            "Its checkpoints stay, and starting it again resumes it.",
        ),
        ("job", "incident"),
        "rankmend reject {which}",
        "the data set is broken",
        takes=("plan",),
        is_grave=True,
    ),
    ActName.ACKNOWLEDGE: ActForm(
        "Acknowledge {incident}",
        "Acknowledge",
        ("Its notices stop. Nothing else changes.",),
        ("incident",),
        "rankmend acknowledge {incident}",
        "known, the node is being repaired",
    ),
    ActName.PAUSE: ActForm(
        "Pause {what}",
        "Pause",
        (
            "Ranks keep running, and failures are still reported.",
            "Recovery plans wait until somebody resumes, or approves one of them.",
        ),
        ("scope",),
        "rankmend pause {option}",
        "work on the switches until 16:00",
    ),
    ActName.RESUME: ActForm(
        "Resume {what}",
        "Resume",
        ("Plans that wait only for this pause are carried out at once.",),
        ("scope",),
        "rankmend resume {option}",
        "the work is done",
    ),
    ActName.DRAIN: ActForm(
        "Drain node {node}",
        "Drain",
        (
            "Ranks there keep running. The node gets no new ones, from any job.",
            "The next restart of a job on it moves that job to other nodes.",
        ),
        ("node",),
        "rankmend drain {node}",
        "a fan is loud, ticket 4711",
    ),
    ActName.UNDRAIN: ActForm(
        "Take node {node} back",
        "Take it back",
        (
            "The node can get ranks again, and its past incidents no longer count against it.",
            "If rankmend drained it in Slurm, rankmend has Slurm take that drain back.",
        ),
        ("node",),
        "rankmend resume --node {node}",
        "the fan is replaced",
    ),
}


def may_do(may: MayAct, name: ActName, about: Mapping[str, str]) -> bool:
    """Return whether this is an act for who may act on so much."""
    if name in (ActName.PAUSE, ActName.RESUME):
        return may.on(about["scope"])
    return may.node if name in (ActName.DRAIN, ActName.UNDRAIN) else may.job


def words_of(name: ActName, about: Mapping[str, str]) -> dict[str, str]:
    """Return what the texts of an act's form speak of."""
    words = dict(about)
    if name in (ActName.PAUSE, ActName.RESUME):
        kind, _colon, rest = about["scope"].partition(":")
        words["what"] = "the whole cluster" if kind == "cluster" else f"{kind} {rest}"
    words["which"] = about.get("incident") or about.get("job", "")
    if not words.get("incident", "-"):
        words["incident"] = f"the start of job {about.get('job', '')}"
    return words


def command_of(name: ActName, about: Mapping[str, str]) -> str:
    """Return what does the same in a terminal, with an example of a reason.

    What the page was asked for is quoted: whoever copies the line runs rankmend, and nothing else.
    """
    form = FORMS[name]
    words = words_of(name, {key: value and shlex.quote(value) for key, value in about.items()})
    if name in (ActName.PAUSE, ActName.RESUME):
        kind, _colon, rest = about["scope"].partition(":")
        words["option"] = "--cluster" if kind == "cluster" else shlex.join([f"--{kind}", rest])
    line = form.command.format(**words)
    return f"{line} --reason {shlex.quote(form.example)}" if form.example else line
