"""Explains records of the cluster's journal, and of network probes, in plain words. Pure.
`recovery.journal.narration.narrator` does so for a job's.
"""

from typing import Final

from detectors.fabric.probe_evidence import ProbeSays
from detectors.wording import counted, moment, names_in_words, ranks_in_words
from recovery.journal.cluster_records import (
    Acknowledged,
    BlameConfirmed,
    BlameTakenBack,
    CauseTold,
    ClusterRecord,
    Hold,
    LemonFound,
    NodeBlamed,
    NodeErrorNoted,
    NodeHeld,
    NodeReleased,
    NotDone,
    NotDoneAct,
    Paused,
    PowerOffAsked,
    Spent,
    Unpaused,
    WatchedAsked,
    WindowAdded,
    WindowRemoved,
)
from recovery.journal.ledger import ProbesNow
from recovery.journal.observation_records import (
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
_PROBE_TEXT: Final = {
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
        what = _PROBE_TEXT[record.says]
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


def narrate_cluster(record: ClusterRecord) -> str:  # noqa: PLR0911, PLR0912 - a line for each kind
    """Return one line about a record of the cluster's journal."""
    match record:
        case NodeBlamed():
            return f"{record.node} is blamed in {record.incident_id}: {record.summary}"
        case NodeErrorNoted():
            kind, _colon, name = record.error.partition(":")
            return f"{record.incident_id} counts nothing against {record.node}: {name or kind}, from one job"
        case BlameConfirmed():
            ids = names_in_words(record.incident_ids)
            return f"{record.node} has had job {record.job_id}, by its agent: {ids} counts"
        case BlameTakenBack():
            ids = names_in_words(record.incident_ids)
            nodes = names_in_words(record.nodes)
            freed = (
                f"; {names_in_words(record.released)} may be used again" if record.released else ""
            )
            return f"taken back from {nodes}: what {ids} counted{_why(record.reason)}{freed}"
        case NodeHeld():
            held = "drained" if record.hold is Hold.DRAIN else "quarantined"
            until = "" if record.until_unix_s is None else f" until {moment(record.until_unix_s)}"
            return f"{record.node} is {held}{until} by {record.who}{_why(record.reason)}"
        case LemonFound():
            does = "would keep" if record.is_dry else "keeps"
            return f"{does} {record.node} out of use until a person takes it back: {record.reason}"
        case NodeReleased():
            return f"{record.node} is taken back by {record.who}{_why(record.reason)}"
        case Paused():
            return f"{_scope(record.scope)} is paused by {record.who}{_why(record.reason)}"
        case Unpaused():
            return f"{_scope(record.scope)} is resumed by {record.who}{_why(record.reason)}"
        case Spent():
            left = f", leaving {names_in_words(record.nodes)}" if record.nodes else ""
            words = record.step.replace("_", " ")
            return f"allowed for {record.incident_id}, try {record.try_number}: {words}{left}"
        case WindowAdded():
            span = f"from {moment(record.from_unix_s)} to {moment(record.until_unix_s)}"
            names = names_in_words(record.nodes)
            return f"maintenance of {names} {span}, by {record.who}{_why(record.reason)}"
        case WindowRemoved():
            return f"maintenance window {record.window_id} is removed by {record.who}{_why(record.reason)}"
        case Acknowledged():
            return f"{record.incident_id} is acknowledged by {record.who}{_why(record.reason)}"
        case PowerOffAsked():
            return f"asks the BMC of {record.node}, which is lost, to switch its power off"
        case WatchedAsked():
            asks = "would ask" if record.is_dry else "asks"
            job = f"job {record.slurm_job} ({record.job})"
            about = job if not record.nodes else f"{job}, for {names_in_words(record.nodes)}"
            return f"{asks} Slurm: {record.action} about {about}{_why(record.reason)}"
        case NotDone():
            if not record.is_observed:
                return f"not done: {record.reason}"
            is_power = record.act is NotDoneAct.POWER_OFF
            act = "switch off the power of" if is_power else record.act.value.replace("_", " ")
            return f"observe mode: would {act} {record.node}{_why(record.reason)}"
        case CauseTold():
            return _cause_line(record)
        case FabricProbeAsked():
            return f"job {record.job_id}: {describe_asked(record)}"
        case FabricProbeEnded():
            return describe_ended(record)


def _cause_line(record: CauseTold) -> str:
    whom = ", ".join(name for name in (record.job, record.node) if name)
    line = f"{record.cause_id} ({record.severity}{f'; {whom}' if whom else ''}): {record.what}"
    if record.is_over:
        return f"over: {line}" + (f"; {record.end}" if record.end else "")
    idle = f"; {counted(record.gpus_idle, 'rank')} idle" if record.gpus_idle else ""
    return line + idle + ("" if record.paged_unix_s is None else "; a message to people")


def _scope(scope: str) -> str:
    return "the whole cluster" if scope == "cluster" else scope.replace(":", " ", 1)


def _why(reason: str) -> str:
    return f": {reason}" if reason else ""
