"""The nodes of one job: what they have reported, and when orders are sent to them."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

from detectors.parts.fleet_parts import ToldDomain
from rankmend.milestones import ProcessMilestone, name_milestone
from recovery.checkpoints.snapshots.memory import NodeMemory, newest_step_of
from recovery.controller.job.adoption import Voice, Waits, is_strange, joined_of, judge
from recovery.controller.job.membership import (
    Gone,
    Word,
    find_torn,
    judge_gone,
)
from recovery.controller.job.node_orders import orders_for
from recovery.controller.job.restore.checkpoint_reports import (
    homes_of,
    join_checkpoints,
    readers_of,
    verdicts_of,
)
from recovery.controller.job.settings import JobSettings
from recovery.journal.attempt_records import Adopted, Placement
from recovery.journal.ledger import Ledger, Member, Wish, is_other_boot
from recovery.journal.limits import Policy
from recovery.journal.node_records import (
    CheckpointReader,
    EndedLauncher,
    Joined,
    LaunchersEnded,
    LeaveCause,
    LeaveReason,
    NodesOff,
)
from recovery.messages.candidates import CheckpointVerdict
from recovery.messages.exchange import Endpoint, Order, Report

log = logging.getLogger(__name__)

RESEND_S: Final = 1.0  # an order that no report acknowledges is sent again
RESEND_NODES_PER_S: Final = 2000
ALIVE_AFTER_S: Final = 1.0
"""A peer that can't be reached is alive if it reports this long after the first report about it.

Longer than its last report can lie unread: before that, a host that has died looks like a torn link.
"""
_JOINED_MAX: Final = 4096  # nodes in one record: 200 bytes each, far below what a record can hold


# Which nodes read the checkpoints, and of which placement and members that was made; both are replaced as a whole.
_Readers: TypeAlias = tuple[Sequence[Placement], Mapping[str, Member], tuple[CheckpointReader, ...]]


class Orders(Protocol):
    def send(self, order: Order) -> None:
        """Take an order to its node, perhaps late, twice or never. Must not block or raise."""
        ...


@dataclass(slots=True)
class NewestReport:
    """A node's newest report, and the most that it has ever acknowledged."""

    report: Report
    at_s: float
    revision: int
    empty_through: int
    empty_at_s: float
    launcher_at_s: float
    epoch: int = 0  # of the controller whose order it acknowledges; 0: it does not tell
    missed_since_s: dict[str, float] = field(default_factory=dict)  # peers it does not reach

    def acknowledges(self, ledger: Ledger) -> bool:
        """Return whether it has carried out the newest order of this journal."""
        return self.epoch in (0, ledger.epoch) and self.revision >= ledger.revision

    def hear(self, report: Report, now_s: float) -> None:
        if report.launcher_id != self.report.launcher_id:
            # Another launcher has received no order, and what the old one emptied stays empty.
            self.revision, self.launcher_at_s = 0, now_s
        self.report, self.at_s = report, now_s
        since_s = self.missed_since_s
        self.missed_since_s = {item: since_s.get(item, now_s) for item in report.unreachable}
        if report.epoch != self.epoch:
            self.epoch, self.revision = report.epoch, 0  # of another journal, perhaps
        self.revision = max(report.revision, self.revision)
        if report.empty_through > self.empty_through:
            self.empty_through, self.empty_at_s = report.empty_through, now_s


class JobNodes:
    def __init__(self, settings: JobSettings, orders: Orders) -> None:
        self._settings = settings
        self._orders = orders
        self._received: dict[str, NewestReport] = {}
        self._joining: dict[str, tuple[Report, float]] = {}
        self._refused: set[str] = set()  # nodes above the most, each logged once
        self._ending: dict[str, tuple[Report, float]] = {}  # not on record yet
        self._ended_at_s: dict[str, float] = {}
        self._confirmed_at_s: dict[str, float] = {}
        self._started_at_s = 0.0
        self._strange: set[str] = set()  # nodes that know what the journal does not
        self._idle_since_s: dict[str, float] = {}  # nodes that run nothing, while some are strange
        self._sent_revision = 0
        self._sent_at_s = 0.0
        self._readers: _Readers | None = None

    def start(self, now_s: float) -> None:
        """Hear everybody anew from now on."""
        self._started_at_s = now_s

    # What nodes say.

    def hear(self, report: Report, ledger: Ledger, now_s: float) -> bool:
        """Take in what a node says; return False where it says nothing new, or must join first."""
        if is_strange(ledger, report) and not report.leaving:
            self._strange.add(report.node)
        member = ledger.members.get(report.node)
        if refuses(ledger, report.node, report.launcher_id) is not None:
            return False
        ending = self._ending.get(report.node)
        if ending is not None and ending[0].launcher_id == report.launcher_id:
            return False  # overtaken by its last
        if report.leaving:
            self._take_leaving(report, member, now_s)
            return False
        if member is None or _has_changed(ledger, member, report):
            self._let_join(report, member, now_s)
            return False
        received = self._received.get(report.node)
        is_same = received is not None and received.report.launcher_id == report.launcher_id
        if received is not None and is_same and 0 < report.number <= received.report.number:
            return False  # overtaken by a later one
        self._note(report, now_s)
        return True

    def _note(self, report: Report, now_s: float) -> None:
        received = self._received.get(report.node)
        if received is None:
            self._received[report.node] = received = NewestReport(report, now_s, 0, 0, now_s, now_s)
        received.hear(report, now_s)

    # What nodes claim of other controllers.

    def adoption(self, ledger: Ledger, now_s: float) -> Adopted | Waits | None:
        """Return what to do about launchers that know what the journal does not."""
        self._strange = {node for node in self._strange if self._is_strange(node, ledger)}
        if not self._strange:
            self._idle_since_s.clear()
            return None
        voices = {
            node: Voice(received.report, received.at_s)
            for node, received in self._received.items()
            if (member := ledger.members.get(node)) is None or member.ended_through is None
        }
        voices |= {node: Voice(report, at_s) for node, (report, at_s) in self._joining.items()}
        idle = {node: voice.reported_at_s for node, voice in voices.items() if not voice.is_running}
        known = self._idle_since_s
        self._idle_since_s = {node: known.get(node, at_s) for node, at_s in idle.items()}
        voices = {
            node: replace(voice, idle_since_s=self._idle_since_s.get(node))
            for node, voice in voices.items()
        }
        gone = [
            node
            for node, at_s in self._confirmed_at_s.items()
            if node not in voices or voices[node].reported_at_s <= at_s
        ]
        return judge(ledger, self._settings, voices, now_s, self._started_at_s, gone)

    def _is_strange(self, node: str, ledger: Ledger) -> bool:
        if (joining := self._joining.get(node)) is not None:
            return is_strange(ledger, joining[0])
        received = self._received.get(node)
        member = ledger.members.get(node)
        has_ended = member is not None and member.ended_through is not None
        return received is not None and not has_ended and is_strange(ledger, received.report)

    @property
    def strange(self) -> frozenset[str]:
        """Return the nodes that know of another controller or attempt than the journal does."""
        return frozenset(self._strange)

    def take_adopted(self, adopted: Adopted) -> list[Report]:
        """Receive the reports of those that an adoption has put on record, and return them."""
        launchers = {item.node: item.launcher_id for item in adopted.nodes}
        reports = []
        for node, (report, at_s) in list(self._joining.items()):
            if launchers.get(node) == report.launcher_id:
                del self._joining[node]
                self._note(report, at_s)
                reports.append(report)
        return reports

    @property
    def claimed(self) -> frozenset[str]:
        """Return the nodes that launchers have claimed as theirs in an attempt not adopted yet."""
        reports = [received.report for received in self._received.values()]
        reports += [report for report, _at_s in self._joining.values()]
        return frozenset(
            peer.node
            for report in reports
            if report.node in self._strange and report.claim is not None
            for peer in report.claim.peers
        ) | frozenset(self._strange)

    def _take_leaving(self, report: Report, member: Member | None, now_s: float) -> None:
        """Hear that a launcher has ended; of one that is not on record, only that it does not join."""
        joining = self._joining.get(report.node)
        if joining is not None and joining[0].launcher_id == report.launcher_id:
            del self._joining[report.node]
        if member is None or member.launcher_id != report.launcher_id:
            return
        if not is_other_boot(member.boot_id, report.boot_id):
            self._ending[report.node] = report, now_s

    def ending(self) -> LaunchersEnded | None:
        """Return the records of launchers that have ended."""
        if not self._ending:
            return None
        return LaunchersEnded(
            tuple(
                EndedLauncher(node, report.launcher_id, report.empty_through)
                for node, (report, _at_s) in sorted(self._ending.items())[:_JOINED_MAX]
            )
        )

    def take_ended(self, ended: LaunchersEnded) -> None:
        """Hear that the ends of these launchers are on record."""
        for launcher in ended.launchers:
            _report, self._ended_at_s[launcher.node] = self._ending.pop(launcher.node)

    def take_off(self, off: NodesOff, now_s: float) -> None:
        """Note that these nodes have no power; the record is durable."""
        self._ended_at_s.update(dict.fromkeys((node.node for node in off.nodes), now_s))

    def _let_join(self, report: Report, member: Member | None, now_s: float) -> None:
        if not report.launcher_id:
            log.warning("report refused: no launcher_id", extra={"node": report.node})
            return
        if member is not None and _is_older(member, report):
            return
        before = self._joining.get(report.node)
        if before is not None:
            other = before[0]
            if other.launcher_id == report.launcher_id:
                if 0 < report.number <= other.number:
                    return
            elif (
                other.boot_id == report.boot_id
                and report.launcher_started_s < other.launcher_started_s
            ):
                return
        self._joining[report.node] = (report, now_s)

    def joining(self, ledger: Ledger, now_s: float) -> tuple[Joined, ...]:
        """Return the nodes to record as joined: at most nodes_max are in the job."""
        silent_s = self._settings.policy.node_silent_s
        if not self._joining:
            return ()
        present = {
            node
            for node, member in ledger.members.items()
            if member.left is None and node in self._received
            if now_s - self._received[node].at_s < silent_s
        }
        present |= {place.node for place in ledger.placement if ledger.is_attempt_open}
        joined: list[Joined] = []
        for node, (report, _at_s) in sorted(self._joining.items())[:_JOINED_MAX]:
            if node not in present and node not in ledger.members:
                if len(present) >= self._settings.nodes_max:
                    self._refuse(node)
                    continue
                present.add(node)
            joined.append(joined_of(report))
        return tuple(joined)

    def _refuse(self, node: str) -> None:
        """Pass over a node that the job has no place for. It reports on, and may be taken later."""
        del self._joining[node]
        if node not in self._refused and len(self._refused) < _JOINED_MAX:
            self._refused.add(node)
            log.warning("node refused: the job has all its nodes", extra={"node": node})

    def take_joined(self, joined: tuple[Joined, ...]) -> list[Report]:
        """Receive the reports of those that are now on record, and return them."""
        reports = []
        for item in joined:
            report, at_s = self._joining.pop(item.node)
            self._note(report, at_s)
            reports.append(report)
        return reports

    def note_confirmed(self, node: str, now_s: float) -> None:
        """Hear that a person says no process is left on the node."""
        self._confirmed_at_s[node] = now_s

    @property
    def reports(self) -> list[Report]:
        return [received.report for received in self._received.values()]

    def report_of(self, node: str) -> Report | None:
        received = self._received.get(node)
        return None if received is None else received.report

    def heard(self, ledger: Ledger, now_s: float) -> dict[str, Report]:
        """Return the newest reports of all nodes that are there."""
        silent_s = self._settings.policy.node_silent_s
        return {
            node: received.report
            for node, received in self._received.items()
            if now_s - received.at_s < silent_s
            and (member := ledger.members.get(node)) is not None
            and member.ended_through is None
        }

    def memories(self, now_s: float) -> list[NodeMemory]:
        """Return what the ranks of each node have in memory, by its newest report. For any thread."""
        # copy() is one step for the interpreter: no report can arrive meanwhile.
        return [
            NodeMemory(
                node,
                received.report.snapshots,
                received.report.copies,
                {
                    rank.rank: rank.snapshots
                    for rank in received.report.ranks
                    if rank.snapshots is not None
                },
                newest_step_of(rank.step for rank in received.report.ranks if not rank.is_relative),
                max(0.0, now_s - received.at_s),
            )
            for node, received in self._received.copy().items()
        ]

    def known_checkpoints(self, ledger: Ledger) -> tuple[CheckpointVerdict, ...]:
        """Return what the launchers that watch the checkpoints beside training know of them together."""
        readers = self._find_readers(ledger)
        reported = {
            reader.node: verdicts_of(report.known)
            for reader in readers
            if (report := self.report_of(reader.node)) is not None and report.known
        }
        homes = None
        if len({reader.folder_id for reader in readers}) > 1:  # 80,000 ranks take 0.1 s
            homes = homes_of(ledger.placement, ledger.members)
        return join_checkpoints(readers, reported, homes, ledger.world_size)

    def _find_readers(self, ledger: Ledger) -> tuple[CheckpointReader, ...]:
        """Return which nodes read the checkpoints: 10,000 nodes are looked through only after one has joined or left."""
        known = self._readers
        if known is not None and known[0] is ledger.placement and known[1] is ledger.members:
            return known[2]
        readers = readers_of(ledger.placement, ledger.members)
        self._readers = ledger.placement, ledger.members, readers
        return readers

    def reported_at_s(self, node: str) -> float:
        """Return when the node last reported; not before this controller started to receive."""
        received = self._received.get(node)
        at_s = self._started_at_s
        return at_s if received is None else max(at_s, received.at_s)

    def is_any_heard(self, ledger: Ledger, since_s: float) -> bool:
        """Return whether any node of the newest attempt has reported after that time."""
        if self._started_at_s > since_s:
            return True
        return any(self.reported_at_s(place.node) > since_s for place in ledger.placement)

    def is_heard(self, node: str) -> bool:
        return node in self._received

    def missing(self, ledger: Ledger) -> list[str]:
        """Return the nodes of the newest attempt without a report so far, which may still send one.

        Before the first attempt: all that have joined. Of a job on one node: that node.
        """
        if self._settings.own_node:
            nodes = [self._settings.own_node]
        elif ledger.is_resumed:
            nodes = []  # a person has started it anew, perhaps elsewhere
        else:
            nodes = [place.node for place in ledger.placement] or list(ledger.members)
        ended = {
            node for node, member in ledger.members.items() if member.ended_through is not None
        }
        received = self._received.keys() | self._joining.keys() | ended
        return [node for node in nodes if node not in received]

    def silent(self, ledger: Ledger, now_s: float, silent_s: float) -> list[str]:
        """Return the nodes of the newest attempt without a report for so long."""
        if now_s - self._started_at_s < silent_s:
            return []
        received = self._received
        return [
            place.node
            for place in ledger.placement
            if (item := received.get(place.node)) is None or now_s - item.at_s >= silent_s
        ]

    def torn(self, ledger: Ledger, now_s: float) -> dict[str, LeaveReason]:
        """Return nodes of the newest attempt that report, but don't reach each other, and why."""
        missed = self._missed(ledger, now_s)
        reported = {
            node: [other for other, is_alive in others.items() if is_alive]
            for node, others in missed.items()
        }
        return find_torn(reported, [place.node for place in ledger.placement])

    def is_torn_or_dead(self, ledger: Ledger, now_s: float) -> bool:
        """Return whether a node of the newest attempt is missed that may have died just now.

        It reports again, or falls silent: until then it is not known whether the link is to blame.
        """
        missed = self._missed(ledger, now_s)
        return not all(is_alive for others in missed.values() for is_alive in others.values())

    def _missed(self, ledger: Ledger, now_s: float) -> dict[str, dict[str, bool]]:
        """Return for each reporting node of the newest attempt the peers that it misses.

        True: the peer has reported since, so that it is alive.
        """
        silent_s = self._settings.policy.node_silent_s
        present = {
            place.node: received
            for place in ledger.placement
            if (received := self._received.get(place.node)) is not None
            and now_s - received.at_s < silent_s
            if (member := ledger.members.get(place.node)) is None or member.ended_through is None
        }
        return {
            node: {
                other: present[other].at_s - since_s >= ALIVE_AFTER_S
                for other, since_s in received.missed_since_s.items()
                if other in present and other != node
            }
            for node, received in present.items()
        }

    def usable(self, ledger: Ledger, now_s: float) -> dict[str, Member]:
        """Return the members that could run ranks: there, able to, and not left."""
        policy = self._settings.policy
        return {
            node: member
            for node, member in ledger.members.items()
            if member.left is None
            and node not in self._strange  # it follows another controller
            and member.slots >= self._settings.slots_of(member.slots)
            and node in self._received
            and now_s - self._received[node].at_s < policy.node_silent_s
        }

    def domains(self) -> dict[str, ToldDomain]:
        """Return what each node hangs on, as its launcher got it from its scheduler."""
        return {
            node: ToldDomain(received.report.domain, received.report.domain_is_block)
            for node, received in self._received.items()
        }

    @property
    def highest_attempt(self) -> int:
        """Return the highest attempt that any node has spoken of; 0 for none."""
        return max(
            (
                max(item.report.attempt, item.empty_through, item.report.fence_attempt or 0)
                for item in self._received.values()
            ),
            default=0,
        )

    def are_empty(self, ledger: Ledger) -> bool:
        """Return whether every node has reported that no process of the newest attempt is left."""
        places = ledger.placement
        return bool(places) and all(
            (received := self._received.get(place.node)) is not None
            and received.empty_through >= ledger.attempt
            for place in places
        )

    def gone(self, ledger: Ledger, policy: Policy, now_s: float) -> Gone:
        """Return whether the newest attempt is proved to be gone from all its nodes."""
        if not ledger.placement:
            return Gone(not ledger.is_attempt_open or self._all_say_empty(ledger))
        words = {
            node: Word(
                received.at_s, received.empty_through, received.empty_at_s, received.launcher_at_s
            )
            for place in ledger.placement
            if (received := self._received.get(node := place.node)) is not None
        }
        return judge_gone(
            ledger,
            ledger.placement,
            words,
            policy,
            now_s,
            started_at_s=self._started_at_s,
            confirmed_at_s=self._confirmed_at_s,
            ended_at_s=self._ended_at_s,
        )

    def _all_say_empty(self, ledger: Ledger) -> bool:
        """An attempt of which only the number is left: all nodes that are here must have reported that."""
        received = self._received.values()
        return bool(received) and all(item.empty_through >= ledger.attempt for item in received)

    def reported_through_s(self, ledger: Ledger) -> float:
        """Return the time through which every node has spoken; 0 before all have."""
        through_s = float("inf")
        for place in ledger.placement:
            received = self._received.get(place.node)
            if received is None:
                return 0.0
            through_s = min(through_s, received.at_s)
        return through_s

    def rendezvous(self, node: str, ledger: Ledger) -> Endpoint | None:
        """Return where the next attempt can meet on the node, or None until it names a new place."""
        report = self.report_of(node)
        reported = None if report is None else report.rendezvous
        if reported is None or (reported.address, reported.port) in ledger.rendezvous_used:
            return None
        return reported

    # What they ought to do.

    def send(self, ledger: Ledger, now_s: float) -> None:
        """Send every node what it ought to be running."""
        self._sent_revision, self._sent_at_s = ledger.revision, now_s
        self._send(ledger, None)

    def resend(self, ledger: Ledger, now_s: float) -> None:
        """Send an order again to who has not acknowledged it."""
        if self._sent_revision != ledger.revision:
            self.send(ledger, now_s)
        elif now_s - self._sent_at_s >= resend_pause_s(len(self._received)):
            behind = {n for n, item in self._received.items() if not item.acknowledges(ledger)}
            if behind:
                self._sent_at_s = now_s
                self._send(ledger, behind)

    def send_to(self, ledger: Ledger, nodes: Collection[str]) -> None:
        """Send some nodes what they ought to be running."""
        self._send(ledger, nodes)

    def _send(self, ledger: Ledger, nodes: Collection[str] | None) -> None:
        if ledger.wish is Wish.NOTHING_YET:
            return
        for order in orders_for(ledger, self._settings, nodes):
            self._orders.send(order)
        name_milestone("controller", ProcessMilestone.ORDER_SENT, ledger.revision)


def resend_pause_s(nodes: int) -> float:
    """Return after how long orders are sent again to those of so many nodes that have not acknowledged them.

    To make 10,000 orders again while the first ones are on their way delays these by 0.3 s.
    """
    return max(RESEND_S, nodes / RESEND_NODES_PER_S)


def refuses(ledger: Ledger, node: str, launcher_id: str) -> str | None:
    """Return why this start of the node's launcher is refused for ever, or None."""
    member = ledger.members.get(node)
    if member is None:
        return None
    if member.ended_through is not None and launcher_id == member.launcher_id:
        return f"launcher {launcher_id} of {node} has ended"
    if launcher_id not in member.replaced:
        return None
    return f"launcher {launcher_id} of {node} was replaced by {member.launcher_id}"


def _has_changed(ledger: Ledger, member: Member, report: Report) -> bool:
    """Return whether the node is another than on record, or comes back.

    A node that is cut off from another one reports all the time. It comes back as a spare when
    the others have got under way without it, or when all those that it did not reach have left.
    """
    is_cut_off = member.left_cause is LeaveCause.CUT_OFF
    waits = is_cut_off and ledger.incident is not None and _misses_any(ledger, member)
    comes_back = member.is_lost and not waits
    return comes_back or (
        (
            member.launcher_id,
            member.boot_id,
            member.slots,
            member.peer_endpoint,
            member.folder_id,
        )
        != (
            report.launcher_id,
            report.boot_id,
            report.slots,
            report.peer_endpoint,
            report.folder_id,
        )
    )


def _misses_any(ledger: Ledger, member: Member) -> bool:
    """Return whether a node that it did not reach is still one of the job's, or none is on record."""
    others = [ledger.members.get(node) for node in member.cut_off_from]
    return not others or any(other is not None and other.left is None for other in others)


def _is_older(member: Member, report: Report) -> bool:
    """Return whether a report is of an older start of the node's launcher than is on record."""
    if is_other_boot(member.boot_id, report.boot_id) or not report.launcher_started_s:
        return False
    return report.launcher_started_s < member.launcher_started_s
