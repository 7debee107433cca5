"""Carries out what is requested of Slurm, or of another manager of nodes: each request once, whatever is killed meanwhile.

A request is durable before `ask` returns, and each act before its command runs. One thread looks at the manager,
decides by the pure state machines beside this file, acts, and looks again; only what it reads back ends a request.
"""

import logging
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from rankmend.clock import Clock
from rankmend.errors import (
    ConfigError,
    JournalError,
    ManagerAwayError,
    ManagerDeniedError,
    ManagerError,
    SourceError,
)
from rankmend.lasting_trouble import LastingTrouble
from recovery.journal.postgres.database import LeaseLostError
from recovery.journal.slurm_records import (
    PodProved,
    SlurmAsked,
    SlurmOutcome,
    SlurmReturnAllowed,
    SlurmVouched,
)
from recovery.schedulers.slurm.bench import LOOK_S, SETTLE_S, Bench, Memory, SlurmJournal, fields_of
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.job_work import JobWork
from recovery.schedulers.slurm.ledger import SlurmLedger, Work
from recovery.schedulers.slurm.limits import NodeLimits, SlurmLimits
from recovery.schedulers.slurm.managed_node import NodeManager
from recovery.schedulers.slurm.node_check import StartCheck, start_check
from recovery.schedulers.slurm.node_returns import NodeReturns
from recovery.schedulers.slurm.node_work import NodeWork
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest

log = logging.getLogger(__name__)

OPEN_MAX: Final = 1_000
# Of one subject. Each is looked at every few seconds, and one by the word of launchers waits for up to 90 s: more than any bound lets through
# in that time only keeps others waiting.
OPEN_OF_SUBJECT_MAX: Final = 64
NODES_MAX: Final = 1_000
SHARED_MAX: Final = 8
DRAINS_LOOK_S: Final = 30.0  # at the nodes that we have drained
# Between two questions about nodes that launchers have named: about the same ones, and about others.
CONFIRM_S: Final = 600.0
CONFIRM_NEW_S: Final = 60.0
AWAY_S: Final = 2.0  # after the manager gave no answer
_KEY: Final = re.compile(r"[!-~]{1,200}")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_STEP: Final = re.compile(r"|batch|[0-9]{1,10}")
_JOB: Final = re.compile(r"[1-9][0-9]{0,9}(_[0-9]{1,9}|\+[0-9]{1,4})?")
_POD: Final = re.compile(
    r"[a-z0-9.-]{1,253}/[a-z0-9.-]{1,253}/[A-Za-z0-9-]{1,64}"
)  # namespace/name/uid
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_JOB_ACTIONS: Final = frozenset({SchedulerAction.CANCEL, SchedulerAction.REQUEUE})
_NODE_ACTIONS: Final = frozenset(
    {SchedulerAction.DRAIN, SchedulerAction.RESUME, SchedulerAction.REBOOT}
)


class RequestWork(Protocol):
    """Works on requests that are not about nodes alone."""

    def advance(self, work: Work, memory: Memory, /) -> None:
        """Look at what the request is about, and do its next step. Raises ManagerError."""
        ...


class RequestDesk:
    """`recovery.schedulers.slurm.requests.Scheduler`. ``ask`` and the properties are for any thread, ``turn`` for one."""

    def __init__(
        self,
        journal: SlurmJournal,
        manager: NodeManager,
        limits: NodeLimits,
        clock: Clock,
        other_work: Callable[[Bench], RequestWork],
        *,
        may_act: Callable[[SchedulerRequest], str] = lambda _request: "",
        observes: Callable[[SchedulerRequest], str | None] = lambda _request: None,
        of_interest: Callable[[], Sequence[str]] = lambda: (),
        settle_s: float = SETTLE_S,
        look_s: float = LOOK_S,
        drains_look_s: float = DRAINS_LOOK_S,
        start_check: StartCheck = start_check,
        denied_s: float = 0.0,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """``may_act`` tells why a request must wait; ``other_work``: what is done about requests that are not about nodes alone.

        ``denied_s``: for how long a manager that has just started may deny us what it grants afterwards.

        ``observes`` tells why a request is not carried out at all; ``of_interest`` names nodes of which a drain by others is
        worth a record. ``left_s``: of the lease under which we act.
        """
        self._of_interest = of_interest
        self._observes = observes
        self.bench = Bench(journal, manager, limits, clock, settle_s, look_s, left_s)
        self._clock = clock
        self.trouble = LastingTrouble(log, f"cannot work on {limits.manager}", clock)
        self._may_act = may_act
        self._nodes = NodeWork(self.bench)
        self._others = other_work(self.bench)
        self._memory: dict[str, Memory] = {}
        self._looked_at_s = float("-inf")
        self._drains_look_s = drains_look_s
        self._denied_s = denied_s
        self.returns = NodeReturns(self.bench, self.ask, may_act, start_check)

        # Nodes of which it matters whether the manager knows them, and those that it has been found to know: replaced as a whole.
        self.named: Callable[[], Sequence[str]] = lambda: ()
        self.known: frozenset[str] = frozenset()
        # Nodes that we have drained and of which the manager hears nothing, and when it said so.
        self._silent: tuple[float, frozenset[str]] = (float("-inf"), frozenset())
        self._asked_for: frozenset[str] = frozenset()
        self._asked_at_s = float("-inf")

        self.works_here = (
            True  # False: another controller works on the desk, and this one asks there
        )

    @property
    def ledger(self) -> SlurmLedger:
        return self.bench.ledger

    @property
    def limits(self) -> NodeLimits:
        return self.bench.limits

    # Any thread.

    def ask(self, request: SchedulerRequest, /) -> None:
        check_request(request)
        with self.bench.lock:
            if request.key in self.ledger.works:
                return
            if len(self.ledger.open) >= OPEN_MAX:
                manager = self.limits.manager
                raise ConfigError(
                    f"{OPEN_MAX} requests to {manager} are open: {request.key} is refused"
                )
            party = _party_of(request)
            own = sum(_party_of(work.request) == party for work in self.ledger.open)
            if party and own >= OPEN_OF_SUBJECT_MAX:
                raise ConfigError(
                    f"{own} requests to {self.limits.manager} are open for jobs of {party}: {request.key} is refused"
                )
            requested = SlurmAsked(
                request.key,
                request.action.value,
                tuple(dict.fromkeys(request.nodes)),
                request.slurm_job,
                request.reason[:1000],
                request.owner[:200],
                request.seen_on[:NODES_MAX],
                request.slurm_step,
                tuple(name[:200] for name in request.shared_by[:SHARED_MAX]),
                request.pods_of,
                request.subject[:200],
                request.vouched[:NODES_MAX],
                request.pods,
                request.job_id[:200],
                request.sharer[:200],
            )
            self._hand_in(requested)
        log.info("asked of %s", self.limits.manager, extra=fields_of(request))

    def take_back(self, node: str, who: str, reason: str) -> bool:
        """Have our drain of a node taken back, as a person says; return whether there is one."""
        with self.bench.lock:
            if not self.ledger.history(node).is_ours:
                return False
            self._hand_in(SlurmReturnAllowed(node, who, reason[:1000]))
            is_asked = any(
                work.request.action is SchedulerAction.RESUME and node in work.request.nodes
                for work in self.ledger.open
            )
            # Each word of a person is a request of its own: one that was dry can be asked again.
            key = f"take-back/{node}/{self.ledger.number}"
        if is_asked:
            return True
        self.ask(SchedulerRequest(key, SchedulerAction.RESUME, (node,), reason=f"{who}: {reason}"))
        return True

    def take_out(self, node: str, who: str, reason: str) -> bool:
        """Have the node take no new jobs, as its check or a person says; return False where that is so, or is asked already."""
        with self.bench.lock:
            is_asked = any(
                work.request.action is SchedulerAction.DRAIN and node in work.request.nodes
                for work in self.ledger.open
            )
            if is_asked or self.ledger.history(node).is_ours:
                return False
            # Each word is a request of its own: one that was dry can be asked again.
            key = f"take-out/{node}/{self.ledger.number}"
        self.ask(SchedulerRequest(key, SchedulerAction.DRAIN, (node,), reason=f"{who}: {reason}"))
        return True

    def vouch(self, node: str, is_there: Callable[[str, str], bool]) -> None:
        """Record for open drains of the node that its agent confirms the job that leaves it.

        ``is_there``: whether the agent has reported a job there, under the subject that owns it. The record is for every controller:
        the one that works on the desk need not be the one to which the agent reports. For any thread.
        """
        with self.bench.lock:
            keys = [
                work.request.key
                for work in self.ledger.open
                if work.request.action is SchedulerAction.DRAIN
                and work.request.subject
                and work.request.job_id
                and node in work.request.nodes
                and node not in {*work.request.vouched, *work.nodes}
                and is_there(work.request.job_id, work.request.subject)
            ]
            for key in keys:
                self._hand_in(SlurmVouched(key, node))

    def note_pod(self, proved: PodProved) -> None:
        """Record in which pod a launcher runs. For any thread."""
        with self.bench.lock:
            if self.ledger.pods_proved.get((proved.job_id, proved.node)) != proved:
                self._hand_in(proved)

    def _hand_in(self, record: SlurmAsked | SlurmReturnAllowed | PodProved | SlurmVouched) -> None:
        """Write a request. It needs no lease: one that was just lost is tried again without."""
        try:
            self.bench.write(record)
        except LeaseLostError:
            self.bench.write(record)

    def waits_for(self, key: str) -> str:
        """Return what an open request waits for."""
        if self.bench.is_answering is False:
            return f"{self.limits.manager} does not answer: {self.bench.problem}"
        memory = self._memory.get(key)
        return "" if memory is None else memory.error or memory.text

    # One thread.

    def take_over(self) -> float:
        """Begin to work here, where another controller may have done so until now; return after how many seconds to `turn`.

        Its lease bounds its calls, so none is under way; what it did last may show a little later.
        """
        self._begin(works_here=True)
        return self.bench.settle_s

    def leave(self) -> None:
        """Work here no more: another controller may do so from now on."""
        self._begin(works_here=False)

    def _begin(self, *, works_here: bool) -> None:
        self.returns.stop()
        self._memory.clear()
        self._looked_at_s = float("-inf")
        self.works_here = works_here
        self._silent = (float("-inf"), frozenset())
        self.bench.is_answering, self.bench.problem = None, ""
        self.bench.catch_up()

    def turn(self) -> float:
        """Do what is due, and return after how many seconds to come again."""
        now_s = self._clock.now_s()
        try:
            self.bench.catch_up()
            if self.returns.collect():
                self._looked_at_s = float("-inf")
            for work in self.ledger.open:
                memory = self._memory.setdefault(work.request.key, Memory(since_s=now_s))
                if now_s >= memory.due_s:
                    self._advance(work, memory)
            if now_s - self._looked_at_s >= self._drains_look_s or self.returns.is_due():
                seen = self._nodes.look_at_drains()
                silent = frozenset(name for name, node in seen.items() if node.is_silent)
                self._silent = now_s, silent
                self.returns.look(seen)
                self._nodes.look_for_others(self._of_interest())
                self._confirm(now_s)
                self._looked_at_s = now_s
        except ManagerAwayError as error:
            self.bench.note_away(error)
            return AWAY_S
        except (JournalError, ManagerError, SourceError) as error:
            self.trouble.note(error)
            return AWAY_S
        self.trouble.end()
        for key in self._memory.keys() - {work.request.key for work in self.ledger.open}:
            del self._memory[key]
            self._looked_at_s = float(
                "-inf"
            )  # a request has ended: its nodes may be drained, or back
        return self.bench.look_s

    def is_silent(self, node: str) -> bool:
        """Return whether the manager, asked lately, hears nothing of a node that we have drained. For any thread."""
        at_s, silent = self._silent
        return node in silent and self._clock.now_s() - at_s <= 2 * self._drains_look_s

    def _confirm(self, now_s: float) -> None:
        """See which of the nodes that launchers have named the manager knows."""
        named = frozenset(self.named())
        every_s = CONFIRM_S if named <= self._asked_for else CONFIRM_NEW_S
        if named and now_s - self._asked_at_s >= every_s:
            self._asked_for, self._asked_at_s = named, now_s
            self.known |= self.bench.client.known(named)  # those that it has: no more than that

    def _advance(self, work: Work, memory: Memory) -> None:
        """Look at what one request is about, and do its next step."""
        if not work.acts and (observed := self._why_observed(work.request)) is not None:
            about = ", ".join(work.request.nodes[:8]) or f"job {work.request.slurm_job}"
            text = f"observe mode ({observed}): would {work.request.action.value} {about}"
            self.bench.end(work, SlurmOutcome.DRY, text)
            return
        if not work.acts and (why := self._may_act(work.request)):
            self.bench.wait(work, memory, why)
            return
        try:
            if work.request.action in _NODE_ACTIONS:
                self._nodes.advance(work, memory)
            else:
                self._others.advance(work, memory)
        except ManagerDeniedError as error:
            if self._is_denied_for_good(memory):
                self.bench.end(work, SlurmOutcome.FAILED, str(error))
                return
            memory.error = str(error)
            memory.due_s = self._clock.now_s() + self.bench.look_s
        except ManagerAwayError:
            raise
        except ManagerError as error:  # the manager has its reasons: look again
            memory.error = str(error)
            memory.due_s = self._clock.now_s() + self.bench.look_s

    def _is_denied_for_good(self, memory: Memory) -> bool:
        now_s = self._clock.now_s()
        if now_s - memory.denied_last_s > self._denied_s + 2 * self.bench.settled_s:
            memory.denied_since_s = now_s  # the one before was another time
        memory.denied_last_s = now_s
        return now_s - memory.denied_since_s >= self._denied_s

    def _why_observed(self, request: SchedulerRequest) -> str | None:
        """Return why nothing is done; what a person has allowed is."""
        is_return = request.action is SchedulerAction.RESUME
        if is_return and all(self.ledger.history(node).allowed for node in request.nodes):
            return None
        return self._observes(request)


class SlurmDesk(RequestDesk):
    """The desk for Slurm, which also has jobs."""

    def __init__(
        self,
        journal: SlurmJournal,
        client: SlurmClient,
        limits: SlurmLimits,
        clock: Clock,
        scripts: Path,
        *,
        may_act: Callable[[SchedulerRequest], str] = lambda _request: "",
        is_gone: Callable[[str, str], bool] = lambda _node, _key: False,
        observes: Callable[[SchedulerRequest], str | None] = lambda _request: None,
        of_interest: Callable[[], Sequence[str]] = lambda: (),
        settle_s: float = SETTLE_S,
        look_s: float = LOOK_S,
        drains_look_s: float = DRAINS_LOOK_S,
        start_check: StartCheck = start_check,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """``is_gone`` tells whether nothing runs on a node that Slurm does not hear; the rest as `RequestDesk`."""
        super().__init__(
            journal,
            client,
            limits,
            clock,
            lambda bench: JobWork(bench, client, limits, scripts, is_gone),
            may_act=may_act,
            observes=observes,
            of_interest=of_interest,
            settle_s=settle_s,
            look_s=look_s,
            drains_look_s=drains_look_s,
            start_check=start_check,
            left_s=left_s,
        )


def _party_of(request: SchedulerRequest) -> str:
    """Return for whose job something is requested; empty: a person, or all users are one party."""
    return request.subject or request.owner


def check_request(request: SchedulerRequest) -> None:
    """Raise ConfigError for a request that makes no sense, or whose names could be read as something else."""
    if not _KEY.fullmatch(request.key):
        raise ConfigError(f"the key of a request is {request.key!r:.200}")
    is_job = request.action in _JOB_ACTIONS
    if is_job and not _JOB.fullmatch(request.slurm_job):
        raise ConfigError(
            f"{request.key}: {request.slurm_job!r:.80} is not the number of a Slurm job"
        )
    if not _STEP.fullmatch(request.slurm_step):
        raise ConfigError(f"{request.key}: {request.slurm_step!r:.80} is not a step of a Slurm job")
    if len(request.pods) > NODES_MAX or not all(map(_POD.fullmatch, request.pods)):
        raise ConfigError(f"{request.key}: {', '.join(request.pods):.200} are not pods")
    is_by_name = request.action is SchedulerAction.EVICT and not request.pods
    if is_by_name and not _LABEL.fullmatch(request.pods_of):
        raise ConfigError(
            f"{request.key}: {request.pods_of!r:.80} is not a valid value of a pod's label"
        )
    if not is_job and not request.nodes:
        raise ConfigError(f"{request.key}: {request.action.value} names no node")
    if len(request.nodes) > NODES_MAX:
        raise ConfigError(f"{request.key}: {len(request.nodes)} nodes; {NODES_MAX} are allowed")
    for node in request.nodes:
        if not _NODE.fullmatch(node):
            raise ConfigError(f"{request.key}: {node!r:.80} is not the name of a node")
