"""Which rank a hung job waits for, from where all ranks stand in all their groups.

Each rank is followed from the first collective that it can't finish to those who keep it from
finishing: members that have not launched it (absent), or that have an older one outstanding
(behind). Who is waited for and waits for nobody is to blame:

    nothing outstanding        its host has stopped before launching         host-stuck
    overtaken by its peers     its device doesn't finish what others did     device-stuck
    has written no dump        its process is gone                           process-gone
    all members are there      begun by all: the network; else it is unknown which
    operations differ          the program                                   program
    ranks wait in a circle     the program's order of operations             deadlock

*Overtaken* is a fact about the device: a peer that has completed a collective, to which every rank
contributes, proves that this rank took part. It waits for nobody, whatever it has outstanding.
Only the first outstanding operation of a rank counts: what is launched behind it has not been reached.
What a rank has launched last says nothing: the host of a stuck device goes on launching.
Waits of sending and receiving are followed and accuse nobody, unless nothing else speaks: an
idle pipeline stage always has receives outstanding. Time stamps are not used.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Final

from detectors.diagnosis import Culprit, Diagnosis, Onset, Verdict
from detectors.finding import Evidence, ranks_in_words
from detectors.hang.flight_dump import Operation, OperationState
from detectors.hang.standings import ONE_SIDED, GroupStanding, JobStandings, RankStandings
from detectors.parallel_groups import Group, places_of

EVIDENCE_MAX: Final = 32
MISSING_RATIO_MAX: Final = 0.5  # with fewer dumps than that nobody is called gone
P2P_WAITERS_MIN: Final = 2  # one alone may be the one that doesn't take what it was sent
BEHIND_RATIO_MAX: Final = 0.5  # of a group, or of the job: more than that share one cause
# How far each kind of answer can be trusted. Ranks among these figures, not frequencies: two
# recorded hangs and the synthetic ones of tests/detectors/hang/test_from_dumps.py are too few to calibrate.
_SURE: Final = 0.95
_BEHIND_SURE: Final = 0.8  # behind in an operation that can end earlier for some
_GONE_SURE: Final = 0.8
_P2P_SURE: Final = 0.4
_EQUAL_SURE: Final = 0.7
_DOUBT: Final = 0.85  # factor for each kind of missing or doubtful input

# Every rank's sizes are equal in these.
_SYMMETRIC: Final = frozenset(
    {
        *("all_reduce", "allreduce_coalesced", "all_reduce_barrier", "broadcast", "_broadcast_oop"),
        *("_all_gather_base", "all_gather_into_tensor_coalesced", "all_gather_single"),
        *("_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter_single"),
    }
)


class HangClass(Enum):
    """What a hang is; the value is the `class` of the diagnosis."""

    HOST_STUCK = "host-stuck"
    DEVICE_STUCK = "device-stuck"
    PROCESS_GONE = "process-gone"
    NETWORK = "network"
    PROGRAM = "program"
    DEADLOCK = "deadlock"
    MIXED = "mixed"  # several culprits of several classes


@dataclass(slots=True)
class _Level:
    """The members of one group whose first outstanding, or next, collective has one number."""

    sequence: int
    there: list[int] = field(default_factory=list)  # have it outstanding
    idle: list[int] = field(default_factory=list)  # have not launched it


@dataclass(slots=True)
class _Stand:
    """One group that somebody waits in."""

    group: Group
    levels: list[_Level]  # ascending
    unseen: list[int]  # members without a usable dump


@dataclass(slots=True)
class _Graph:
    """Who waits for whom. Nodes are ranks (0 and up) and the waits of groups (below 0).

    A strong edge is a fact; a weak one a wait for sending and receiving, or for a member that is
    there and has something older outstanding in another group.
    """

    strong: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    weak: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[int, tuple[_Stand, _Level]] = field(default_factory=dict)

    def both(self, node: int) -> list[int]:
        return self.strong.get(node, []) + self.weak.get(node, [])


def diagnose_hang(job: JobStandings) -> Diagnosis:
    """Return who a hung job waits for, or why nobody can be named."""
    return _Case(job).judge()


class _Case:
    """One look at one job. Everything is computed once, in the order of the methods."""

    def __init__(self, job: JobStandings) -> None:
        self.job = job
        self.views = {view.rank: view for view in job.views}
        self.groups = {group.name: group for group in job.groups}
        self.standing = {(view.rank, s.group): s for view in job.views for s in view.standings}
        self.blocking = {view.rank: _blocking(view) for view in job.views}
        members = {rank for group in job.groups for rank in group.ranks}
        self.missing = members - set(self.views) - job.unread
        self.stands = [stand for group in job.groups if (stand := self._stand(group))]
        self.overtaken: dict[int, list[tuple[_Stand, int]]] = defaultdict(list)
        self.accused: dict[int, list[Evidence]] = defaultdict(list)  # by a strong wait
        self.p2p_accused: set[int] = set()
        self.is_before_p2p: set[int] = set()  # its older receives may be what it waits for
        self.gone: set[int] = set()
        self.pairs: set[int] = set()  # in transfers that both sides have launched and don't end
        self.up_to: dict[tuple[str, int], int] = {}  # nodes: all members no further than this
        self.graph = _Graph()

    def judge(self) -> Diagnosis:
        if (differing := self._find_mismatch()) is not None:
            return differing
        self._find_overtaken()
        self._draw()
        causes: dict[int, HangClass] = {}
        equal: list[tuple[_Stand, _Level]] = []
        circles: list[list[int]] = []
        for component in _sinks(self.graph.both, list(self._nodes())):
            self._judge_sink(component, causes, equal, circles)
        causes |= {rank: HangClass.PROCESS_GONE for rank in self.gone if self._may_be_gone()}
        if causes:
            return self._culprits(causes)
        if circles:
            return self._deadlock(circles)
        if equal:
            return self._equal(equal)
        return (None if self.pairs else self._by_p2p()) or self._nobody()

    # -- where everyone stands

    def _stand(self, group: Group) -> _Stand | None:
        """Return who is where in a group, or None where nobody waits."""
        levels: dict[int, _Level] = {}
        unseen: list[int] = []
        uncounted: list[int] = []
        lowest_waiting: int | None = None
        for rank in group.ranks:
            standing = self.standing.get((rank, group.name))
            if standing is None:
                (uncounted if rank in self.views else unseen).append(rank)
                continue
            position = standing.completed + 1
            level = levels.setdefault(position, _Level(position))
            if standing.is_waiting:
                lowest_waiting = min(position, lowest_waiting or position)
                level.there.append(rank)
            else:
                level.idle.append(rank)
        if lowest_waiting is None or len(group.ranks) < 2:
            return None
        for rank in uncounted:  # its dump doesn't tell how far it came
            view = self.views[rank]
            if not self._has_old_peers(group):
                levels.setdefault(1, _Level(1)).idle.append(rank)
            elif self.blocking[rank] is None and not view.pending_p2p:
                # What it had launched would be outstanding, for its peers wait for all members.
                levels[lowest_waiting].idle.append(rank)
            else:
                unseen.append(rank)
        return _Stand(group, [levels[key] for key in sorted(levels)], unseen)

    def _has_old_peers(self, group: Group) -> bool:
        """Return whether some member has completed a collective, so that all have taken part."""
        standings = (self.standing.get((rank, group.name)) for rank in group.ranks)
        return any(standing is not None and standing.completed > 0 for standing in standings)

    def _find_mismatch(self) -> Diagnosis | None:
        """Return the verdict on ranks that stand in the same place with different operations."""
        for stand in self.stands:
            for level in stand.levels:
                forms: dict[tuple[object, ...], list[int]] = defaultdict(list)
                for rank in level.there:
                    first = self.standing[rank, stand.group.name].first
                    if first is not None:
                        forms[_form(first)].append(rank)
                if len(forms) > 1:
                    return self._program(stand, level, forms)
        return None

    def _find_overtaken(self) -> None:
        for stand in self.stands:
            behind = 0
            for number, level in enumerate(stand.levels[:-1]):
                behind += len(level.there) + len(level.idle)
                if behind > BEHIND_RATIO_MAX * len(stand.group.ranks):
                    break  # most of a group is not behind: some are ahead
                for rank in level.there:
                    first = self.standing[rank, stand.group.name].first
                    if first is None or first.kind not in ONE_SIDED:
                        self.overtaken[rank].append((stand, number))

    # -- who waits for whom

    def _nodes(self) -> Iterable[int]:
        yield from self.views
        yield from self.graph.waits

    def _draw(self) -> None:
        graph = self.graph
        wait_of: dict[tuple[str, int], int] = {}
        node = -1
        for stand in self.stands:
            below: int | None = None  # the node that stands for all lower levels
            waiting = sum(len(level.there) for level in stand.levels)
            for number, level in enumerate(stand.levels):
                waiting_here = waiting
                waiting -= len(level.there)
                if level.there:
                    wait, node = node, node - 1
                    wait_of[stand.group.name, level.sequence] = wait
                    graph.waits[wait] = (stand, level)
                    self._draw_wait(wait, stand, level, below)
                if number < len(stand.levels) - 1:
                    lower, node = node, node - 1
                    graph.strong[lower] = [*level.there, *level.idle]
                    if below is not None:
                        graph.strong[lower].append(below)
                    below = self.up_to[stand.group.name, level.sequence] = lower
                    graph.waits[lower] = (stand, level)
                if waiting_here:
                    self._accuse(stand, level, waiting, waiting_here)
        for rank in self.views:
            self._draw_rank(rank, wait_of)
        self._find_gone()

    def _draw_wait(self, wait: int, stand: _Stand, level: _Level, below: int | None) -> None:
        """Draw whom the members of one level wait for."""
        graph = self.graph
        name = stand.group.name
        graph.strong[wait] = [*level.idle, *stand.unseen]
        if below is not None:
            graph.strong[wait].append(below)
        states = {}
        for rank in level.there:
            first = self.standing[rank, name].first
            states[rank] = first.state if first else OperationState.ENQUEUED
            blocking = self.blocking[rank]
            is_elsewhere = blocking is not None and blocking.group != name
            if is_elsewhere or self._older_p2p(rank):
                graph.weak[wait].append(rank)
        started = [rank for rank, state in states.items() if state is OperationState.STARTED]
        if started and len(started) < len(states):
            for rank in sorted(set(states) - set(started)):
                if not graph.weak[wait] or rank not in graph.weak[wait]:
                    graph.strong[wait].append(rank)
                    self.overtaken.setdefault(rank, [(stand, 0)])
                    text = (
                        f"{ranks_in_words(started)} began collective {level.sequence} of "
                        f"{stand.group.title} and its device did not, though its host has launched it"
                    )
                    self.accused[rank].append(Evidence(f"flight recorder of rank {rank}", text))

    def _accuse(self, stand: _Stand, level: _Level, above: int, here_and_above: int) -> None:
        """Note who is waited for by a strong wait: ``above`` members are further and wait."""
        for rank in level.idle:
            self.accused[rank].append(
                Evidence(
                    f"flight recorder of rank {rank}",
                    f"has not launched collective {level.sequence} of {stand.group.title}, "
                    f"in which {here_and_above} of {len(stand.group.ranks)} members wait",
                )
            )
        furthest = stand.levels[-1].sequence
        if furthest == level.sequence or not (above or stand.levels[-1].idle):
            return
        for rank in level.there:
            first = self.standing[rank, stand.group.name].first
            kind = first.kind if first else "a collective"
            self.accused[rank].append(
                Evidence(
                    f"flight recorder of rank {rank}",
                    f"has not finished {kind} {level.sequence} of {stand.group.title}; "
                    f"other members have finished up to {furthest - 1}",
                )
            )

    def _older_p2p(self, rank: int) -> list[Operation]:
        """Return what a rank sends and receives and launched before its blocking collective."""
        blocking = self.blocking[rank]
        pending = self.views[rank].pending_p2p
        if blocking is None:
            return list(pending)
        record = blocking.first.record if blocking.first else -1
        return [operation for operation in pending if operation.record < record]

    def _draw_rank(self, rank: int, wait_of: dict[tuple[str, int], int]) -> None:
        graph = self.graph
        if rank in self.overtaken:
            # It takes part in what its peers have finished: only one even further behind holds it.
            for stand, number in self.overtaken[rank]:
                if number > 0:
                    key = (stand.group.name, stand.levels[number - 1].sequence)
                    graph.strong[rank].append(self.up_to[key])
            return
        blocking = self.blocking[rank]
        if blocking is not None:
            wait = wait_of.get((blocking.group, blocking.completed + 1))
            if wait is not None:
                graph.strong[rank].append(wait)
        for operation in self._older_p2p(rank):
            self.is_before_p2p.add(rank)
            if operation.peer is not None and operation.peer != rank:
                graph.weak[rank].append(operation.peer)
                self.p2p_accused.add(operation.peer)

    def _find_gone(self) -> None:
        """Note the missing ranks that alone explain some wait."""
        for wait, (stand, level) in self.graph.waits.items():
            targets = self.graph.both(wait)
            if not targets or not stand.unseen or not set(targets) <= set(stand.unseen):
                continue
            unread = self.job.unread.intersection(targets)
            waiters = [
                rank
                for rank in level.there
                if self.graph.strong.get(rank) == [wait] and rank not in self.is_before_p2p
            ]
            if waiters and not unread:
                for rank in set(targets) & self.missing:
                    self.gone.add(rank)
                    text = (
                        f"has written no dump; {ranks_in_words(sorted(waiters))} wait for it in "
                        f"collective {level.sequence} of {stand.group.title}"
                    )
                    self.accused[rank].append(Evidence(f"dump of rank {rank}", text))

    def _may_be_gone(self) -> bool:
        known = len(self.views) + len(self.missing) + len(self.job.unread)
        return len(self.missing) < MISSING_RATIO_MAX * known

    # -- who is to blame

    def _judge_sink(
        self,
        component: list[int],
        causes: dict[int, HangClass],
        equal: list[tuple[_Stand, _Level]],
        circles: list[list[int]],
    ) -> None:
        ranks = [node for node in component if node >= 0]
        waits = [self.graph.waits[node] for node in component if node < 0]
        if not ranks:
            for stand, level in waits:
                is_top = level is stand.levels[-1]
                if not is_top and len(level.there) <= BEHIND_RATIO_MAX * len(stand.group.ranks):
                    causes |= dict.fromkeys(level.there, HangClass.DEVICE_STUCK)
                elif not stand.unseen:
                    equal.append((stand, level))
            return
        if len(ranks) == 1:
            if (cause := self._cause(ranks[0])) is not None:
                causes[ranks[0]] = cause
            elif waits:
                equal.extend(waits)
            return
        self._judge_circle(component, causes, circles)

    def _judge_circle(
        self, component: list[int], causes: dict[int, HangClass], circles: list[list[int]]
    ) -> None:
        """Judge ranks that wait for each other, weak waits left out."""
        inside = set(component)
        strong = _sinks(
            lambda node: [one for one in self.graph.strong.get(node, []) if one in inside],
            component,
        )
        named = {}
        found = []
        for inner in strong:
            ranks = [node for node in inner if node >= 0]
            if len(ranks) > 1:
                found.append(sorted(ranks))
            elif ranks and (cause := self._cause(ranks[0])) is not None:
                named[ranks[0]] = cause
        # A host is not stuck where a transfer may hold it that both sides have launched, and it is
        # not told apart from another one that it sends to or receives from.
        hosts = {rank for rank, cause in named.items() if cause is HangClass.HOST_STUCK}
        unclear = {
            rank
            for rank in hosts
            if self._partners(rank) & inside or not hosts.isdisjoint(self.graph.weak.get(rank, []))
        }
        for rank in unclear:
            self.pairs |= {rank} | (self._partners(rank) & inside)
        causes |= {rank: cause for rank, cause in named.items() if rank not in unclear}
        is_p2p = not self.is_before_p2p.isdisjoint(component)
        if not named and not found and not is_p2p:
            found.append(sorted(node for node in component if node >= 0))
        circles += found

    def _partners(self, rank: int) -> set[int]:
        """Return who sends what this rank receives, or receives what it sends, both launched."""
        other = {"send": "recv", "recv": "send"}
        return {
            mine.peer
            for mine in self._older_p2p(rank)
            if mine.peer in self.views
            for theirs in self.views[mine.peer].pending_p2p
            if theirs.peer == rank and theirs.kind == other.get(mine.kind)
        }

    def _cause(self, rank: int) -> HangClass | None:
        """Return why a rank that waits for nobody is to blame; None where nobody accuses it."""
        if rank not in self.views or rank not in self.accused:
            return None
        if rank in self.overtaken or self.blocking[rank] is not None:
            return HangClass.DEVICE_STUCK
        return HangClass.HOST_STUCK

    # -- the answers

    def _doubts(self) -> tuple[float, list[Evidence]]:
        """Return the factor for what is missing or doubtful, and that in words."""
        lines = [Evidence("dumps", text) for text in self.job.warnings]
        unsure = len(self.job.warnings)
        if others := sorted(self.missing - self.gone):
            lines.append(Evidence("dumps", f"no dump from {ranks_in_words(others)}"))
            unsure += 1
        if self.job.unread:
            text = f"the dump can't be used of {ranks_in_words(sorted(self.job.unread))}"
            lines.append(Evidence("dumps", text))
            unsure += 1
        return _DOUBT ** min(unsure, 5), lines

    def _answer(
        self,
        verdict: Verdict,
        cause: HangClass | None,
        reason: str,
        confidence: float,
        evidence: list[Evidence],
        culprits: tuple[Culprit, ...] = (),
    ) -> Diagnosis:
        factor, doubts = self._doubts()
        lines = [*evidence[: EVIDENCE_MAX - len(doubts[:8])], *doubts[:8]]
        return Diagnosis(
            verdict=verdict,
            culprits=culprits,
            cause=cause.value if cause else "",
            reason=reason,
            onset=self._onset(),
            confidence=confidence * factor,
            evidence=tuple(lines),
        )

    def _onset(self) -> Onset | None:
        """Return when the oldest unfinished collective was launched."""
        times_s = [
            standing.first.enter_s
            for standing in self.blocking.values()
            if standing and standing.first and standing.first.enter_s is not None
        ]
        return Onset(unix_s=min(times_s)) if times_s else None

    def _culprits(self, causes: dict[int, HangClass]) -> Diagnosis:
        known = len(self.views) + len(self.missing) + len(self.job.unread)
        if len(causes) > BEHIND_RATIO_MAX * known:
            reason = (
                f"{len(causes)} of {known} ranks are waited for: something that they share, "
                "storage or the program, rather than their machines"
            )
            lines = [self.accused[rank][0] for rank in sorted(causes) if self.accused[rank]]
            return self._answer(Verdict.UNKNOWN, None, reason, _P2P_SURE, lines)
        kinds = set(causes.values())
        cause = kinds.pop() if len(kinds) == 1 else HangClass.MIXED
        sure = _SURE
        evidence: list[Evidence] = []
        culprits = []
        places = places_of(self.job.groups, causes)
        for rank, one in sorted(causes.items()):
            place = places[rank]
            culprits.append(
                Culprit(rank, stage=place.stage, dp_rank=place.dp_rank, cause=one.value)
            )
            evidence += self.accused[rank][:2]
            if one is HangClass.PROCESS_GONE:
                sure = min(sure, _GONE_SURE)
            elif one is HangClass.DEVICE_STUCK and rank not in self.overtaken:
                sure = min(sure, _BEHIND_SURE)
        by_cause = defaultdict(list)
        for rank, one in causes.items():
            by_cause[one].append(rank)
        said = "; ".join(
            f"{ranks_in_words(sorted(ranks))}: {_WORDS[one]}" for one, ranks in by_cause.items()
        )
        return self._answer(
            Verdict.CULPRITS, cause, f"the job waits for {said}", sure, evidence, tuple(culprits)
        )

    def _program(
        self, stand: _Stand, level: _Level, forms: dict[tuple[object, ...], list[int]]
    ) -> Diagnosis:
        evidence = []
        for ranks in sorted(forms.values(), key=len, reverse=True):
            first = self.standing[ranks[0], stand.group.name].first
            assert first is not None
            text = f"{first.kind} of {first.shape.input_sizes} to {first.shape.output_sizes}, {', '.join(first.shape.dtypes)}"
            evidence.append(Evidence(f"flight recorder of {ranks_in_words(sorted(ranks))}", text))
        reason = (
            f"the ranks of {stand.group.title} are in different operations at collective "
            f"{level.sequence}: the program's doing, no machine is to blame"
        )
        return self._answer(Verdict.NOBODY, HangClass.PROGRAM, reason, _SURE, evidence)

    def _deadlock(self, circles: list[list[int]]) -> Diagnosis:
        evidence = []
        for rank in circles[0][: EVIDENCE_MAX // 2]:
            blocking = self.blocking[rank]
            if blocking is not None:
                title = self.groups[blocking.group].title
                text = f"waits in collective {blocking.completed + 1} of {title}"
                evidence.append(Evidence(f"flight recorder of rank {rank}", text))
        reason = (
            f"{ranks_in_words(circles[0])} wait for each other in a circle: the program launches "
            "collectives in different orders, no machine is to blame"
        )
        return self._answer(Verdict.NOBODY, HangClass.DEADLOCK, reason, _BEHIND_SURE, evidence)

    def _equal(self, equal: list[tuple[_Stand, _Level]]) -> Diagnosis:
        evidence = []
        is_begun = True
        for stand, level in equal:
            firsts = [self.standing[rank, stand.group.name].first for rank in level.there]
            states = Counter(first.state.value for first in firsts if first is not None)
            is_begun = is_begun and set(states) == {OperationState.STARTED.value}
            kind = firsts[0].kind if firsts[0] else "collective"
            words = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            text = f"all {len(level.there)} members are in {kind} {level.sequence}: {words}"
            evidence.append(Evidence(f"flight recorder of {stand.group.title}", text))
        titles = ", ".join(sorted({stand.group.title for stand, _level in equal})[:4])
        if is_begun:
            reason = f"all members of {titles} have begun the same collective, and it doesn't end: the network between them"
            return self._answer(Verdict.NOBODY, HangClass.NETWORK, reason, _EQUAL_SURE, evidence)
        reason = (
            f"all members of {titles} have launched the same collective, and nothing tells which "
            "device or link holds it (TORCH_NCCL_ENABLE_TIMING=1 would record which have begun)"
        )
        return self._answer(Verdict.UNKNOWN, None, reason, _P2P_SURE, evidence)

    def _by_p2p(self) -> Diagnosis | None:
        """Return the verdict where only sending and receiving speaks."""
        waited = Counter(
            peer for rank, peers in self.graph.weak.items() if rank >= 0 for peer in set(peers)
        )
        alone = [
            rank
            for rank in sorted(self.p2p_accused)
            if waited[rank] >= P2P_WAITERS_MIN
            and not self.graph.both(rank)
            and rank not in self.job.unread
            and not self._is_like_peers(rank)
        ]
        if not alone or self.accused or len(alone) > len(self.views) // 2:
            return None
        if any(rank in self.missing for rank in alone) and not self._may_be_gone():
            return None
        causes = {
            rank: HangClass.PROCESS_GONE if rank in self.missing else HangClass.HOST_STUCK
            for rank in alone
        }
        self.gone |= set(alone) & self.missing
        kinds = set(causes.values())
        evidence = [
            Evidence(
                f"flight recorder of rank {rank}",
                "peers send to it or receive from it, and it does neither",
            )
            for rank in alone
        ]
        places = places_of(self.job.groups, alone)
        return self._answer(
            Verdict.CULPRITS,
            kinds.pop() if len(kinds) == 1 else HangClass.MIXED,
            f"the job waits for {ranks_in_words(alone)}, as far as sending and receiving tells",
            _P2P_SURE,
            evidence,
            tuple(
                Culprit(r, stage=places[r].stage, dp_rank=places[r].dp_rank, cause=causes[r].value)
                for r in alone
            ),
        )

    def _is_like_peers(self, rank: int) -> bool:
        """Return whether all of some group stand where this rank does, and none of them waits."""
        for group in self.job.groups:
            if rank not in group.ranks or len(group.ranks) < 2:
                continue
            standings = [self.standing.get((one, group.name)) for one in group.ranks]
            counts = {standing.completed if standing else None for standing in standings}
            is_still = not any(
                one not in self.views or self.blocking[one] or self.views[one].pending_p2p
                for one in group.ranks
            )
            if is_still and len(counts) == 1 and counts.isdisjoint({None, 0}):
                return True
        return False

    def _nobody(self) -> Diagnosis:
        if len(self.views) <= 1:
            reason = (
                f"{len(self.views)} ranks wrote a dump that can be used, and none can be compared"
            )
            return self._answer(Verdict.UNKNOWN, None, reason, _P2P_SURE, [])
        if self.pairs:
            reason = (
                f"a transfer between {ranks_in_words(sorted(self.pairs))} doesn't end, which both sides "
                "have launched: one of the devices or the link between, not known which"
            )
            return self._answer(Verdict.UNKNOWN, None, reason, _P2P_SURE, [])
        if self.stands or self.is_before_p2p:
            reason = "ranks wait, and what is recorded doesn't tell for whom"
            return self._answer(Verdict.UNKNOWN, None, reason, _P2P_SURE, [])
        reason = "no rank has an unfinished collective: nobody waits for another in communication"
        return self._answer(Verdict.NOBODY, None, reason, _EQUAL_SURE, [])


_WORDS: Final = {
    HangClass.HOST_STUCK: "host stopped before launching the next collective",
    HangClass.DEVICE_STUCK: "device doesn't finish what peers have finished",
    HangClass.PROCESS_GONE: "no dump was written, the process is gone",
}


def _blocking(view: RankStandings) -> GroupStanding | None:
    """Return the group in which a rank stands: where it launched its oldest outstanding one."""
    waiting = [standing for standing in view.standings if standing.is_waiting]
    return min(waiting, key=lambda s: s.first.record if s.first else -1, default=None)


def _form(operation: Operation) -> tuple[object, ...]:
    """Return what has to be equal between the ranks of one collective."""
    if operation.kind not in _SYMMETRIC:
        return operation.kind, operation.shape.dtypes
    shape = operation.shape
    return operation.kind, shape.dtypes, _elements(shape.input_sizes), _elements(shape.output_sizes)


def _elements(sizes: Sequence[Sequence[int]]) -> int:
    return sum(prod(size) for size in sizes)


def _sinks(edges: Callable[[int], list[int]], nodes: Sequence[int]) -> list[list[int]]:
    """Return the strongly connected components without an edge to another one.

    Tarjan's algorithm with a stack of its own: chains are as long as a job has ranks.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    found: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        work = [(root, iter(edges(root)))]
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(edges(target))))
                    break
                if target not in component:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    members = []
                    while True:
                        member = stack.pop()
                        component[member] = len(found)
                        members.append(member)
                        if member == node:
                            break
                    found.append(members)
    return [
        members
        for number, members in enumerate(found)
        if all(component[target] == number for node in members for target in edges(node))
    ]
