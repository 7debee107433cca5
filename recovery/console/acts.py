"""What people can have done from a page: which words ask for it, and what will happen. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final


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
    command: str  # what does the same in a terminal
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
        takes=("plan",),
    ),
    ActName.REJECT: ActForm(
        "Reject the plan of {incident}",
        "Reject: end the job",
        (
            "The incident is escalated, and the job ends.",
            "Its checkpoints stay, and starting it again resumes it.",
        ),
        ("job", "incident"),
        "rankmend reject {which} --reason ...",
        takes=("plan",),
        is_grave=True,
    ),
    ActName.ACKNOWLEDGE: ActForm(
        "Acknowledge {incident}",
        "Acknowledge",
        ("Its notices stop. Nothing else changes.",),
        ("incident",),
        "rankmend acknowledge {incident} --reason ...",
    ),
    ActName.PAUSE: ActForm(
        "Pause {what}",
        "Pause",
        (
            "Ranks keep running, and failures are still reported.",
            "Recovery plans wait until somebody resumes, or approves one of them.",
        ),
        ("scope",),
        "rankmend pause {option} --reason ...",
    ),
    ActName.RESUME: ActForm(
        "Resume {what}",
        "Resume",
        ("Plans that wait only for this pause are carried out at once.",),
        ("scope",),
        "rankmend resume {option} --reason ...",
    ),
    ActName.DRAIN: ActForm(
        "Drain node {node}",
        "Drain",
        (
            "Ranks there keep running. The node gets no new ones, from any job.",
            "The next restart of a job on it moves that job to other nodes.",
        ),
        ("node",),
        "rankmend drain {node} --reason ...",
    ),
    ActName.UNDRAIN: ActForm(
        "Take node {node} back",
        "Take it back",
        (
            "The node can get ranks again, and its past incidents no longer count against it.",
            "If rankmend drained it in Slurm, Slurm is asked to take that drain back.",
        ),
        ("node",),
        "rankmend resume --node {node} --reason ...",
    ),
}


def words_of(name: ActName, about: Mapping[str, str]) -> dict[str, str]:
    """Return what the texts of an act's form speak of."""
    words = dict(about)
    if name in (ActName.PAUSE, ActName.RESUME):
        kind, _colon, rest = about["scope"].partition(":")
        words["what"] = "the whole cluster" if kind == "cluster" else f"{kind} {rest}"
        words["option"] = "--cluster" if kind == "cluster" else f"--{kind} {rest}"
    words["which"] = about.get("incident") or about.get("job", "")
    if not words.get("incident", "-"):
        words["incident"] = f"the start of job {about.get('job', '')}"
    return words


REASON_CHARACTERS_MAX: Final = 1000  # as recovery.api.wire.Reason
