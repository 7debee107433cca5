"""The alerts that are active now: each once, however often and by however many it is told.

Delivery is at least once, two Prometheus replicas differ in startsAt and labels of their own, and
Alertmanager says "resolved" by itself when a Prometheus dies. So an alert is known by the hash of its routing
labels, a repeat changes nothing, and an end is passed on as what it is: no proof of anything.
One that comes and goes again and again is evidence once (`detectors.persistence` says when that is so): it
stays, whatever ends it, until it has been quiet for long.
Two Alertmanagers that don't hear each other may deliver "firing" after "resolved": a copy that starts no later than what has ended
accuses nobody, and is left to be sent again. One Alertmanager does the same where it lost its Prometheus for minutes: the alert holds.
So it does where one Prometheus of a pair ends what the other goes on to say: what an Alertmanager returns when it is asked is no copy
from before. Of a pair whose labels differ, the end by one is none while the other fires.
Bounded: what nobody repeats any more is forgotten, and each sender has its share (`recovery.controller.cluster.alert_shares`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

from detectors.finding import Action, Evidence, Severity
from detectors.persistence import Persistence, Track, look
from recovery.controller.cluster.alert_shares import (
    NOBODY,
    READ_BACK,
    Sender,
    Shares,
    size_of,
)
from recovery.controller.cluster.cluster_limits import AlertRules
from recovery.controller.cluster.incoming_alerts import (
    KEPT_MAX,
    RANKS_MAX,
    AlertTarget,
    IncomingAlert,
    host_of,
    is_node_name,
    target_of,
)
from recovery.controller.cluster.node_names import FoundNode, HeardNames, NodeNames, NoMatch
from recovery.controller.cluster.notices import DAILY_RECORD, MARK, MESSAGE, NoticeKind
from recovery.messages.outside import NameMatch, NodeEvidence

_TEXT_MAX: Final = 2_000
# Alertmanager tries a message again until its group_interval is over (5 min by default), and waits 15 s for each peer before it.
_LATE_S: Final = 330.0
_ENDED_MAX: Final = 10_000  # ends that are remembered for so long
_COPIES_MAX: Final = (
    16  # of one alert, by as many that tell of it with labels of their own; the oldest goes
)
_ENDS_USE: Final = frozenset(action.value for action in Action if action.ends_use)
_NOTICES: Final = frozenset({*(kind.value for kind in NoticeKind), MESSAGE, MARK, DAILY_RECORD})


_NAME_UNCHANGED: Final = FoundNode()


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    target: AlertTarget
    summary: str
    evidence: tuple[Evidence, ...]
    told_ranks: tuple[tuple[str, int], ...]  # (job, rank) by the annotation `ranks`
    started_unix_s: float
    seen_unix_s: float
    times: int
    told: tuple[tuple[str, int], ...]  # jobs that were told of it, each with its attempt then
    is_firing: bool = True  # False: it flaps, and its newest word was "resolved"
    sender: Sender = NOBODY  # with the fewest limits of those that told of it
    found: FoundNode = _NAME_UNCHANGED

    @property
    def node(self) -> str:
        """Return the node that is accused, by its launcher's name where that is known; empty for none."""
        if self.is_doubtful and not self.found.node:
            return host_of(self.told_node)
        return self.found.node or self.target.node

    @property
    def told_node(self) -> str:
        """Return what the alert itself calls the node, as far as that can be a name."""
        reported = self.target.told_node
        return reported if is_node_name(reported) else self.target.node

    @property
    def ends_use(self) -> bool:
        """Return whether it rules its device or node out."""
        return self.target.severity == Severity.CRITICAL.value and self.target.action in _ENDS_USE

    @property
    def is_doubtful(self) -> bool:
        """Return whether a node of a job may be meant, and is not accused since that is not certain."""
        return self.found.why_not not in (None, NoMatch.UNKNOWN)


@dataclass(frozen=True, slots=True)
class JobNode:
    """A job as the alerts need it: its ranks on each node."""

    job_id: str
    ranks: tuple[int, ...]
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class TakenAlerts:
    """The outcome of one message."""

    accepted: int
    repeated: int
    ended: int
    damped: int  # ends that were not believed, since it comes and goes, or another copy of it fires
    passed_over: tuple[str, ...]  # alerts that concern no job, and why; at most 100
    refused: int = 0  # for which there was no room
    refusal: str = ""  # why, of the first of them
    late: int = 0  # that fire, and start no later than what has just ended: a copy, or it holds on


class ActiveAlerts:
    """For one thread."""

    def __init__(self, rules: AlertRules, shares: Shares | None = None) -> None:
        self._rules = rules
        self._flaps = _flaps(rules)
        self._active: dict[str, ActiveAlert] = {}
        self._tracks: dict[str, Track] = {}  # alerts that fired within the flap window
        self._copies: dict[str, dict[bytes, float]] = {}  # by key: which fire, and until when
        self._shares = Shares() if shares is None else shares
        self._heard = HeardNames()
        self._starts: dict[
            str, float
        ] = {}  # by key: the newest start that was told of what is active
        self._ended: dict[
            str, tuple[float, float]
        ] = {}  # by key: when it ended, and its newest start

    def take_rules(self, rules: AlertRules) -> None:
        """Read alerts by other rules from now on."""
        self._rules, self._flaps = rules, _flaps(rules)

    @property
    def active(self) -> tuple[ActiveAlert, ...]:
        return tuple(self._active.values())

    def receive(
        self,
        alerts: Iterable[IncomingAlert],
        jobs_on: Mapping[str, tuple[JobNode, ...]],
        now_unix_s: float,
        is_hushed: Callable[[str], bool] = lambda _node: False,
        sender: Sender = NOBODY,
        rules: AlertRules | None = None,
        names: Callable[[], NodeNames] | None = None,
    ) -> tuple[TakenAlerts, list[tuple[str, NodeEvidence]]]:
        """Take in a message; return what came of it, and what each job is to hear.

        ``jobs_on``: node -> the jobs that have ranks there, by their newest reports. Of a node that is
        hushed nothing is told; what still fires when it is so no longer is for `retell`. ``rules``: those by
        which it was decided that the sender may speak for the nodes, where they may have changed since.
        ``names`` gives the names of all nodes; without it those of ``jobs_on`` count.
        """
        book = _NameBook(jobs_on, names)
        received: list[tuple[str, NodeEvidence]] = []
        counts = {"accepted": 0, "repeated": 0, "ended": 0, "damped": 0}
        passed: list[str] = []
        refused, refusal, late = 0, "", 0
        for alert in alerts:
            target = target_of(alert, self._rules if rules is None else rules)
            if sender.nodes:  # its limits were compared with this name
                target = replace(target, told_node=target.node)
            why = self._refuse(target) or self._refuse_end(alert, target.key, sender)
            if why is not None:
                if len(passed) < 100:
                    passed.append(f"{target.alertname or '(no name)'}: {why}")
                continue
            if alert.is_firing:
                is_asked = sender is READ_BACK  # of this moment
                if not is_asked and self._is_late(target.key, alert.starts_unix_s, now_unix_s):
                    late += 1
                    continue
                active = self._read(alert, target, now_unix_s, sender)
                self._heard.note(active.told_node, now_unix_s)
                active = self._locate(active, jobs_on, book)
                no_room = self._shares.admit(target.key, sender, _size(active), now_unix_s)
                if no_room is not None:
                    refused, refusal = refused + 1, refusal or no_room
                    continue
                whom = {} if active.node and is_hushed(active.node) else jobs_on
                is_new, evidence = self._fire(active, whom, now_unix_s, alert.starts_unix_s)
                self._note_copy(target.key, alert, now_unix_s)
                counts["accepted" if is_new else "repeated"] += 1
                received += evidence
            elif target.key not in self._active:
                self._note_end(target.key, alert.starts_unix_s, now_unix_s)
            elif self._is_over(target.key, alert, now_unix_s):
                counts["ended"] += 1
                self._note_end(target.key, alert.starts_unix_s, now_unix_s)
                received += self._end(target.key, jobs_on, now_unix_s)
            else:
                counts["damped"] += 1
        while (key := self._shares.crowded_out()) is not None:
            if key in self._active:
                received += self._end(key, jobs_on, now_unix_s)
            self._drop(key)
        return TakenAlerts(
            **counts, passed_over=tuple(passed), refused=refused, refusal=refusal, late=late
        ), received

    def _note_copy(self, key: str, alert: IncomingAlert, now_unix_s: float) -> None:
        copies = self._copies.setdefault(key, {})
        copies.pop(alert.copy, None)  # so that the oldest comes first
        until_s = now_unix_s + self._rules.forget_s
        copies[alert.copy] = until_s if alert.ends_unix_s is None else alert.ends_unix_s
        if len(copies) > _COPIES_MAX:
            del copies[next(iter(copies))]

    def _fires_elsewhere(self, key: str, ended: IncomingAlert, now_unix_s: float) -> bool:
        """Return whether another copy of an alert goes on to fire, of which one has ended."""
        copies = self._copies.get(key, {})
        copies.pop(ended.copy, None)
        return any(until_s > now_unix_s for until_s in copies.values())

    def _note_end(self, key: str, starts_unix_s: float | None, now_unix_s: float) -> None:
        starts = [one for one in (starts_unix_s, self._starts.get(key)) if one is not None]
        self._ended.pop(key, None)
        if starts:
            self._ended[key] = now_unix_s, max(starts)
        while len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def _is_late(self, key: str, starts_unix_s: float | None, now_unix_s: float) -> bool:
        """Return whether it is a copy of what has just ended, that was long under way."""
        if key not in self._ended or key in self._active or starts_unix_s is None:
            return False
        ended_at_s, newest_start_s = self._ended[key]
        return starts_unix_s <= newest_start_s and now_unix_s - ended_at_s < _LATE_S

    def _refuse(self, target: AlertTarget) -> str | None:
        if target.alertname in _NOTICES:
            return "it is rankmend's own notification"
        if not any(fnmatchcase(target.alertname, pattern) for pattern in self._rules.accept):
            return "its name is not in alerts.accept, so it may not blame a node"
        if target.node and not is_node_name(target.node):
            return f"{target.node!r:.80} is not a node name"
        if not target.node and not target.job_id:
            return f"it names no node ({', '.join(self._rules.node_labels)})"
        return None

    def _refuse_end(self, alert: IncomingAlert, key: str, sender: Sender) -> str | None:
        """Return why an alert doesn't end: who speaks for his jobs alone takes back no word about a node that others share."""
        known = self._active.get(key)
        if alert.is_firing or known is None or known.sender.is_of_jobs or not sender.is_of_jobs:
            return None
        return "its end is by a sender limited to jobs, and another one says that it fires"

    def _drop(self, key: str) -> None:
        self._active.pop(key, None)
        self._copies.pop(key, None)
        self._starts.pop(key, None)
        self._tracks.pop(key, None)
        self._shares.remove(key)

    def _locate(
        self, active: ActiveAlert, jobs_on: Mapping[str, tuple[JobNode, ...]], book: "_NameBook"
    ) -> ActiveAlert:
        """Return the alert with the node that it means."""
        reported = active.told_node
        if not reported:
            return active
        host = host_of(reported)
        found = next((FoundNode(item) for item in (reported, host) if item in jobs_on), None)
        if found is None:
            found = book.names.find(reported, self._heard)
            found = _narrow(found, active.sender, jobs_on)
        return active if found == active.found else replace(active, found=found)

    def locate(
        self,
        jobs_on: Mapping[str, tuple[JobNode, ...]],
        names: Callable[[], NodeNames] | None = None,
    ) -> None:
        """Look again which nodes the alerts mean: launchers have come and gone."""
        book = _NameBook(jobs_on, names)
        for key, active in self._active.items():
            self._active[key] = self._locate(active, jobs_on, book)

    def _read(
        self, alert: IncomingAlert, target: AlertTarget, now_unix_s: float, sender: Sender
    ) -> ActiveAlert:
        """Return the alert as the book keeps it, with what it knows of it already."""
        known = self._active.get(target.key)
        starts = now_unix_s if alert.starts_unix_s is None else alert.starts_unix_s
        started = min(starts, now_unix_s)
        return ActiveAlert(
            target,
            _summary(alert, target),
            _evidence(alert),
            _annotated_ranks(alert),
            started if known is None else min(started, known.started_unix_s),
            now_unix_s,
            1 if known is None else known.times + 1,
            () if known is None else known.told,
            sender=sender if known is None or known.sender.is_limited else known.sender,
        )

    def _fire(
        self,
        active: ActiveAlert,
        jobs_on: Mapping[str, tuple[JobNode, ...]],
        now_unix_s: float,
        starts_unix_s: float | None,
    ) -> tuple[bool, list[tuple[str, NodeEvidence]]]:
        key = active.target.key
        if starts_unix_s is not None:
            self._starts[key] = max(self._starts.get(key, starts_unix_s), starts_unix_s)
        is_new = key not in self._active
        self._look(key, now_unix_s, is_bad=True)
        self._active[key] = active
        return is_new, self._tell_attempts(key, self._jobs(active, jobs_on), now_unix_s)

    def _tell_attempts(
        self, key: str, jobs: Iterable[JobNode], now_unix_s: float
    ) -> list[tuple[str, NodeEvidence]]:
        """Return what each job's attempt must hear of an alert: once, also where the last one was told and the job stayed."""
        active = self._active[key]
        reported = dict(active.told)
        new = [job for job in jobs if reported.get(job.job_id) != job.attempt]
        if new:
            reported |= {job.job_id: job.attempt for job in new}
            self._active[key] = replace(active, told=tuple(reported.items()))
        return [(job.job_id, self._tell(active, job, now_unix_s)) for job in new]

    def _look(self, key: str, now_unix_s: float, *, is_bad: bool) -> Track | None:
        track = look(self._tracks.get(key), self._flaps, is_bad=is_bad, at_s=now_unix_s)
        if track is not None:
            self._tracks[key] = track
        return track

    def _is_over(self, key: str, ended: IncomingAlert, now_unix_s: float) -> bool:
        """Return whether an end is the end; one that flaps stays, and is known to be silent."""
        if self._fires_elsewhere(key, ended, now_unix_s):
            return False
        track = self._look(key, now_unix_s, is_bad=False)
        if track is None or not (track.is_active and track.is_flapping):
            return True
        self._active[key] = replace(self._active[key], is_firing=False, seen_unix_s=now_unix_s)
        return False

    def _end(
        self, key: str, jobs_on: Mapping[str, tuple[JobNode, ...]], now_unix_s: float
    ) -> list[tuple[str, NodeEvidence]]:
        active = self._active.pop(key)
        self._copies.pop(key, None)
        self._starts.pop(key, None)
        self._shares.end(key, now_unix_s)
        jobs = {job.job_id: job for job in self._jobs(active, jobs_on)}
        return [
            (
                job_id,
                replace(
                    self._tell(active, jobs.get(job_id, JobNode(job_id, ())), now_unix_s),
                    is_active=False,
                ),
            )
            for job_id, _attempt in active.told
        ]

    @staticmethod
    def _jobs(active: ActiveAlert, jobs_on: Mapping[str, tuple[JobNode, ...]]) -> list[JobNode]:
        """Return the jobs that the alert concerns."""
        named = active.target.job_id
        there = () if active.is_doubtful else jobs_on.get(active.node, ())
        if not named:
            return list(there)
        found = [job for job in there if job.job_id == named]
        if found or active.target.node:
            return found
        nodes = [job for jobs in jobs_on.values() for job in jobs if job.job_id == named]
        return nodes[:1]  # it names a job and no node

    def _tell(self, active: ActiveAlert, job: JobNode, now_unix_s: float) -> NodeEvidence:
        target = active.target
        ranks = target.ranks or tuple(
            sorted(rank for job_id, rank in active.told_ranks if job_id == job.job_id)
        )
        if not set(ranks) <= set(job.ranks):
            ranks = ()  # from an earlier placement: the present ranks count
        return NodeEvidence(
            identity=target.key,
            alertname=target.alertname,
            node=active.node,
            ranks=ranks or job.ranks,
            device=target.device,
            severity=_severity(target.severity),
            action=target.action,
            summary=active.summary,
            since_age_s=max(0.0, now_unix_s - active.started_unix_s),
            evidence=active.evidence,
            told_node="" if active.found.match is NameMatch.EXACT else active.told_node,
            match=active.found.match,
        )

    def forget(self, now_unix_s: float) -> list[tuple[str, NodeEvidence]]:
        """Drop what nobody has repeated for long, and what has flapped and is quiet now.

        Return that it is over, for the jobs that were told of it.
        """
        due_s = now_unix_s - self._rules.forget_s
        self._heard.forget(due_s)
        late_s = now_unix_s - _LATE_S
        self._ended = {key: ended for key, ended in self._ended.items() if ended[0] > late_s}
        quiet_s = now_unix_s - self._rules.flap_window_s
        gone = [
            key
            for key, alert in self._active.items()
            if alert.seen_unix_s < due_s or (not alert.is_firing and alert.seen_unix_s < quiet_s)
        ]
        over: list[tuple[str, NodeEvidence]] = []
        for key in gone:
            over += self._end(key, {}, now_unix_s)
        for key in [key for key, track in self._tracks.items() if track.last_bad_at_s < quiet_s]:
            if key not in self._active:
                del self._tracks[key]
        for key in self._shares.old(quiet_s):
            if key not in self._active:
                self._drop(key)
        return over

    def retell(
        self, node: str, jobs: tuple[JobNode, ...], now_unix_s: float
    ) -> list[tuple[str, NodeEvidence]]:
        """Return what an attempt that has just come to ``node``, or stays there, must hear of what is active there."""
        received = []
        for key, active in self._active.items():
            if active.node == node:
                there = self._jobs(active, {node: jobs})
                received += self._tell_attempts(key, there, now_unix_s)
        return received


class _NameBook:
    """The names of nodes, made when they are needed first: they take long on thousands of nodes."""

    def __init__(
        self,
        jobs_on: Mapping[str, tuple[JobNode, ...]],
        names: Callable[[], NodeNames] | None,
    ) -> None:
        self._jobs_on, self._make = jobs_on, names

    @cached_property
    def names(self) -> NodeNames:
        return NodeNames(self._jobs_on) if self._make is None else self._make()


def _narrow(
    found: FoundNode, sender: Sender, jobs_on: Mapping[str, tuple[JobNode, ...]]
) -> FoundNode:
    """Return what is left of a match by who tells of it, and by where jobs run."""
    if found.node and not sender.may_accuse(found.node):
        return FoundNode(why_not=NoMatch.LIMITS, like=(found.node,))
    if found.node and found.node not in jobs_on and any(item in jobs_on for item in found.like):
        return replace(found, why_not=NoMatch.AMBIGUOUS)  # a name from before a renaming?
    return found


def _flaps(rules: AlertRules) -> Persistence:
    return Persistence(
        clear_looks=1, flap_raises=rules.flap_raises, flap_window_s=rules.flap_window_s
    )


def _size(active: ActiveAlert) -> int:
    target = active.target
    texts = [target.key, target.alertname, target.node, target.device, target.job_id]
    texts += [target.told_node]
    texts += [target.severity, target.action, active.summary]
    texts += [line.text for line in active.evidence]
    texts += [job_id for job_id, _rank in active.told_ranks]
    return size_of(texts, len(target.ranks) + len(active.told_ranks) + len(active.evidence))


def _severity(text: str) -> Severity:
    try:
        return Severity(text)
    except ValueError:
        return Severity.WARNING  # "page", "error" ...: another site's words


def _summary(alert: IncomingAlert, target: AlertTarget) -> str:
    words = alert.annotations.get("summary") or alert.annotations.get("description")
    return (words or f"{target.alertname} on {target.node}")[:_TEXT_MAX]


def _evidence(alert: IncomingAlert) -> tuple[Evidence, ...]:
    text = alert.annotations.get("description", "")[:_TEXT_MAX]
    return tuple(Evidence("alert", line) for line in text.splitlines()[:20] if line.strip())


def _annotated_ranks(alert: IncomingAlert) -> tuple[tuple[str, int], ...]:
    """Return the ranks of the annotation ``ranks``: ``JOB:1, JOB:2`` as the agent writes it."""
    found = []
    for word in alert.annotations.get("ranks", "").split(",")[:RANKS_MAX]:
        job_id, _colon, rank = word.strip().rpartition(":")
        if 0 < len(job_id) <= KEPT_MAX and rank.isdecimal() and len(rank) <= 9:
            found.append((job_id, int(rank)))
    return tuple(found)
