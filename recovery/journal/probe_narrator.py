"""The records of probes of the network in words. Pure."""

from typing import Final

from detectors.fabric.probe_evidence import ProbeSays
from detectors.wording import counted, names_in_words, ranks_in_words
from recovery.journal.ledger import ProbesNow
from recovery.journal.probe_records import (
    FabricProbeAsked,
    FabricProbeEnded,
    FabricProbeSkipped,
    ProbeEnd,
)

_ENDS: Final = {
    ProbeEnd.YIELDED: "gave way",
    ProbeEnd.FAILED: "failed",
    ProbeEnd.LATE: "did not end in time",
    ProbeEnd.INTERRUPTED: "was interrupted",
}
_SAYS: Final = {
    ProbeSays.ELSEWHERE: "found slow parts, but none that the slow ranks use",
    ProbeSays.NOTHING: "found nothing slow: look at the slow ranks' own nodes, NICs and cables",
    ProbeSays.UNCLEAR: "decided nothing",
}


def describe_asked(record: FabricProbeAsked) -> str:
    act = "would have" if record.is_dry else "has"
    which = "nodes" if record.training else "idle nodes"
    ranks = ranks_in_words(record.ranks)
    return (
        f"communication of {ranks} is slow: {act} {len(record.nodes)} {which} "
        f"({names_in_words(record.nodes)}) test the network"
    )


def describe_skipped(record: FabricProbeSkipped) -> str:
    idle = names_in_words(record.idle) or "none"
    return (
        f"communication of {ranks_in_words(record.ranks)} is slow, and the network is not tested: "
        f"that takes 2 idle nodes (idle: {idle})"
    )


def describe_ended(record: FabricProbeEnded) -> str:
    if record.end is not ProbeEnd.JUDGED:
        why = f": {record.reason}" if record.reason else ""
        return f"the probe of the network {_ENDS[record.end]}{why}"
    what = f"found {record.part} slow, on the path of the slow ranks"
    if record.says is not None and record.says is not ProbeSays.SHARED:
        what = _SAYS[record.says]
        what += f": {record.reason}" if record.reason else ""
    slow = f"; slow: {names_in_words(record.slow_nodes)}" if record.slow_nodes else ""
    return f"the probe of the network {what}{slow}"


def end_of_probe(record: object) -> str | None:
    """Return how a probe has ended, in one word: also one that was not made; None: the record says no such thing."""
    match record:
        case FabricProbeAsked(is_dry=True):
            return "dry"
        case FabricProbeSkipped():
            return "too_few"
        case FabricProbeEnded(end=end):
            return end.value
    return None


def describe_now(probes: ProbesNow) -> str:
    """Return what is known of the newest probe, while its ranks are slow; empty: there was none."""
    if probes.skipped is not None:
        return describe_skipped(probes.skipped)
    if probes.ended is not None:
        return describe_ended(probes.ended)
    if probes.asked is None:
        return ""
    if probes.asked.is_dry:
        return describe_asked(probes.asked)
    return f"{counted(len(probes.asked.nodes), 'node')} test the network now"
