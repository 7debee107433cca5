"""One node's share of a job: brings what runs in line with the newest order, and reports.

Level-triggered. The launcher never decides: an order says which ranks of which attempt ought
to run, the difference is acted upon, and the report says what is. Everything that could block
(the console, the journal, checkpoints) has a thread or a process of its own; this loop waits
on descriptors only.
"""

import contextlib
import errno
import logging
import os
import selectors
import signal
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rankmend import console
from rankmend.agent_socket import AgentLink, OfferedRank, ShownFinding
from rankmend.clock import Clock
from rankmend.errors import LaunchError, SourceError
from recovery.launcher.evidence.collector import EvidenceCollector
from recovery.launcher.evidence.recorder import recorder_files
from recovery.launcher.guardian.client import Guardian, Spawn
from recovery.launcher.guardian.last_word import LastWord
from recovery.launcher.guardian.packets import (
    STANDBY_ATTEMPT,
    Emptied,
    Event,
    Exited,
    Exiting,
    GuardianLost,
    KillPending,
    LeaseExpired,
    Spawned,
    SpawnFailed,
)
from recovery.launcher.guardian.watch import Care, GuardianWatch
from recovery.launcher.host.hardware import HardwareWatch
from recovery.launcher.host.oom import OomCounter
from recovery.launcher.membership.node_membership import Membership, report_pause_s
from recovery.launcher.membership.peers import Lease, boot_time_s
from recovery.launcher.membership.remote import RETURNS_PER_S
from recovery.launcher.processes.listing import read_list
from recovery.launcher.processes.standing import ForeignMarks, identify, own_mark
from recovery.launcher.processes.tree import fence_leftovers, find_marked, read_state
from recovery.launcher.ranks.command import RankCommand, fill
from recovery.launcher.ranks.environment import Rendezvous, rank_environment
from recovery.launcher.ranks.launched import LaunchedAttempt, LaunchedRank
from recovery.launcher.ranks.output import Output
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.launcher.ranks.standbys import StandbyPool
from recovery.launcher.rendezvous.store import RendezvousStore
from recovery.messages.exchange import (
    VERSION,
    Claim,
    Endpoint,
    Order,
    RankExit,
    Report,
    Stop,
    StopReason,
)

log = logging.getLogger(__name__)

REPORT_S: Final = 0.5  # while all ranks step
REPORT_FAST_S: Final = 0.05  # from an order until every rank has made two steps
HURRY_S_MAX: Final = 300.0  # and no longer than this
GUARDIANS_LOST_MAX: Final = 3  # somebody kills them on purpose
LEFTOVERS_S_MAX: Final = 60.0  # as policy.fence_timeout_s: what lives longer will not go
FENCE_S_MAX: Final = 60.0  # for the storage to take the fence, as policy.fence_timeout_s
LEASE_STEP_S: Final = 0.25  # the guardian is told of a lease that has moved by so much at least
# A planned stop without the controller: it answers within milliseconds, and its restart takes
# seconds. Slurm's KillWait is 30 s.
STOP_ALONE_S: Final = 5.0
EVIDENCE_END_S: Final = 2.0  # for a collection to finish writing when the job has its outcome
LEFTOVER_S: Final = 5.0  # for children that outlive ranks which all ended with 0
_FORWARDED: Final = (signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # torchrun's
_SUSPEND_FLUSH_S: Final = 1.0  # for the console to show why nothing is heard of the launcher
ATTEMPT_MAX: Final = 2**31 - 1  # a progress file has 32 bits for it; at one a second, 68 years


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What the user asked to run; the same for every attempt."""

    job_id: str
    job_name: str
    node: str
    boot_id: str
    command: RankCommand
    environment: Mapping[str, str]
    folder: Path  # working directory of the ranks
    run_id: str
    role: str
    fence_file: Path | None
    is_auto: bool
    time_limit_s: float | None
    mark_node: str | None = None  # where other nodes of the job may be on this machine: this one
    is_old_torch: bool = False  # whose flight recorder is off by default
    grace_s: float = 30.0  # of a planned stop that no controller has heard of
    stop_signals: tuple[signal.Signals, ...] = STOP_SIGNALS  # each asks for a planned stop
    is_virtual_local_rank: bool = False  # each rank sees one GPU
    cpus: tuple[tuple[int, ...], ...] = ()  # by local rank; empty: not bound
    stdin: int | None = None  # the ranks' standard input; None: /dev/null


class LaunchFault(NamedTuple):
    """Why the ranks of the newest order could not be started."""

    name: str  # an errno name as the system spells it, "store" or "refused"
    text: str


class Launcher:
    def __init__(
        self,
        plan: LaunchPlan,
        start_guardian: Callable[[], Guardian],
        store: RendezvousStore,
        output: Output,
        runtime: RuntimeFolder,
        agent: AgentLink,
        clock: Clock,
        send_report: Callable[[Report], None],
        standbys: StandbyPool | None = None,
        membership: Membership | None = None,
        *,
        takes_signals: bool = True,
        evidence: EvidenceCollector | None = None,
        hardware: HardwareWatch | None = None,
    ) -> None:
        """``membership``: of a job on several nodes; None: the controller is in this process."""
        self._plan = plan
        self._start_guardian = start_guardian
        self._guardian = start_guardian()
        self._guardians_lost = 0
        self._guardian_watch = GuardianWatch()
        self._promoted: dict[int, tuple[Order, LaunchedRank, Rendezvous]] = {}
        self._store = store
        self._output = output
        self._runtime = runtime
        self._agent = agent
        self._clock = clock
        self._send_report = send_report
        self._standbys = standbys
        self._evidence = evidence
        self._hardware = hardware
        self._told_at_s: dict[str, float] = {}  # keys of findings, when they were first heard of
        self._membership = membership
        self._report_number = 0
        self._epoch = 0  # highest that was heard of
        self._controller_id = ""  # the first of that epoch
        self._answered_by = (0, "")  # epoch and UUID of the controller that takes our reports
        self._followed_at_s = clock.now_s()  # when the controller that we follow last answered
        self._standing: Order | None = None  # newest that says who has which ranks
        self._launched_at_s = boot_time_s()
        self._leased_until_s: float | None = None
        self._word_left: LastWord | None = None  # with the guardian
        self._fence_asked: tuple[int, float] | None = None  # attempt, since when
        self._found_for = (0, 0)  # epoch and revision for which the checkpoints were asked for
        self._stop_at_s: float | None = None
        self._takes_signals = takes_signals  # only the main thread of a process can
        self._oom = OomCounter()
        self._attempt: LaunchedAttempt | None = None
        self._empty_through = 0
        self._wanted: Order | None = None  # newest order, carried out or not
        self._carried = (0, 0)  # epoch and revision of the newest order carried out
        self._kill_sent_through = 0
        self._grace_until_s: float | None = None
        self._leftover_until_s: float | None = None
        self._launch_fault: LaunchFault | None = None
        self._stop_requested: StopReason | None = None
        self._left_by: StopReason | None = None  # who asked a node to go that ran nothing
        self._interrupts = 0
        self._is_finished = False
        self._reported_at_s = 0.0
        self._report_now = True
        self._started_at_s = clock.now_s()
        self._inbox: list[Order] = []
        self._inbox_lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    # From other threads.

    def send(self, order: Order) -> None:
        """Take an order; only the newest counts."""
        with self._inbox_lock:
            self._inbox.append(order)
        self._wake()

    def note_answer(self, epoch: int, controller_id: str) -> None:
        """Hear which controller has taken a report."""
        if not controller_id:
            return  # it is older than this question
        self._answered_by = (epoch, controller_id)
        if self._answered_by == (self._epoch, self._controller_id):
            self._followed_at_s = self._clock.now_s()

    @property
    def epoch(self) -> int:
        """Return the highest epoch of a controller that was heard of; 0 for none."""
        return self._epoch

    def finish(self) -> None:
        """End `run`: the job has its outcome."""
        self._is_finished = True
        self._wake()

    # The loop.

    def run(self, nothing_left_through: int) -> None:
        """Serve until `finish`. No process of the attempts up to the number given is left."""
        self._empty_through = nothing_left_through
        if self._hardware is not None:
            self._hardware.start()
        if self._membership is not None:
            self._membership.peers.start()
            self._membership.storage.start(self._wake)
        selector = self._selector = selectors.DefaultSelector()
        selector.register(self._wake_read, selectors.EVENT_READ)
        selector.register(self._guardian.fileno(), selectors.EVENT_READ)
        if self._standbys is not None:
            selector.register(self._standbys.fileno(), selectors.EVENT_READ)
        taken = (*self._plan.stop_signals, *_FORWARDED, signal.SIGTSTP, signal.SIGWINCH)
        catch = _signals_to(self._wake_write, taken)
        with catch if self._takes_signals else contextlib.nullcontext():
            while not self._is_finished:
                selector.select(self._wait_s())
                self._read_wakeups()
                for event in self._guardian.read_events():
                    self._take_event(event)
                self._take_orders()
                self._check_time()
                self._watch_guardian()
                self._check_store()
                self._agent.tick()
                self._keep_lease()
                self._leave_word()
                if self._standbys is not None:
                    self._standbys.tick(self._guardian, may_start=self._is_calm())
                self._reconcile()
                self._report_if_due()
        selector.close()

    def close(self) -> bool:
        """Leave no process and no file behind; return whether it is proved that no process is left."""
        if self._attempt is not None:
            self._close_ranks(self._attempt)
        is_empty = self._guardian.close()
        if is_empty and self._attempt is not None:
            self._empty_through = max(self._empty_through, self._attempt.number)
            if self._membership is not None:
                self._membership.peers.tell(self._attempt.number, self._empty_through)
        if self._standbys is not None:
            self._standbys.close()
        if self._evidence is not None:
            self._evidence.close(EVIDENCE_END_S)
        if self._hardware is not None:
            self._hardware.stop()
        self._agent.close()
        if self._membership is not None:
            self._membership.peers.close()
            self._membership.storage.close()
        self._runtime.remove()
        os.close(self._wake_read)
        os.close(self._wake_write)
        return is_empty

    def last_report(self) -> Report | None:
        """Return what is to be said once `close` has proved that no process is left."""
        word = self._make_word()
        return None if word is None else word.report(self._empty_through)

    def _make_word(self) -> LastWord | None:
        plan, membership = self._plan, self._membership
        contact = None if membership is None else membership.contact()
        if membership is None or contact is None:
            return None
        group_count = 1 if self._wanted is None else self._wanted.group_count
        return LastWord(
            job_id=plan.job_id,
            node=plan.node,
            launcher_id=membership.launcher_id,
            boot_id=plan.boot_id,
            slots=membership.slots,
            launcher_started_s=self._launched_at_s,
            contact=contact,
            spread_s=group_count / RETURNS_PER_S,
        )

    def _leave_word(self) -> None:
        """Have the guardian speak for this launcher should it be killed."""
        word = self._make_word()
        if word is None or word == self._word_left:
            return
        with contextlib.suppress(LaunchError):  # its end is the next event
            self._guardian.leave_word(msgspec.json.encode(word))
            self._word_left = word

    def _wait_s(self) -> float:
        if self._report_now:
            return 0.0
        until_s = self._reported_at_s + self._report_pause_s()
        for deadline_s in (self._grace_until_s, self._leftover_until_s):
            if deadline_s is not None:
                until_s = min(until_s, deadline_s)
        if self._evidence is not None and (left_s := self._evidence.wait_s(self._clock.now_s())):
            until_s = min(until_s, self._clock.now_s() + left_s)
        return max(0.0, until_s - self._clock.now_s())

    def _is_in_a_hurry(self) -> bool:
        wanted = self._wanted
        if wanted is not None and self._carried < (wanted.epoch, wanted.revision):
            return True
        if self._attempt is None:
            return False
        if self._clock.now_s() - self._attempt.started_at_s > HURRY_S_MAX:
            return False  # ranks that tell of no steps
        alive = [rank for rank in self._attempt.ranks.values() if rank.exit is None]
        return any(rank.progress is None or rank.progress.step_count < 2 for rank in alive)

    def _is_calm(self) -> bool:
        """Return whether every rank trains, so that standbys may take time from the processors."""
        attempt = self._attempt
        if attempt is None or self._wanted is None or self._stop_requested is not None:
            return False
        is_started = all(rank.pid and rank.exit is None for rank in attempt.ranks.values())
        return is_started and not self._is_in_a_hurry()

    def _read_wakeups(self) -> None:
        try:
            received = os.read(self._wake_read, 4096)
        except BlockingIOError:
            return
        for number in received:
            if number:
                self._take_signal(signal.Signals(number))

    def _take_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGTSTP:
            _suspend()
        elif number is signal.SIGWINCH:
            self._output.resize()
        elif number in self._plan.stop_signals:
            self._interrupts += 1
            if self._stop_requested is None:
                self._request_stop(StopReason(number.name))
            elif number is signal.SIGINT and self._interrupts > 1:
                log.warning("second interrupt: killing the ranks")
                self._grace_until_s = self._clock.now_s()
        elif number in _FORWARDED and self._attempt is not None:
            self._ask(self._guardian.signal, self._attempt.number, number)

    def _check_time(self) -> None:
        limit_s = self._plan.time_limit_s
        if limit_s is None or self._stop_requested is not None:
            return
        if self._clock.now_s() - self._started_at_s >= limit_s:
            self._request_stop(StopReason.TIME_LIMIT)

    def _request_stop(self, reason: StopReason) -> None:
        """Have the job end as planned; a node that runs nothing of it only leaves."""
        if self._membership is not None and not self._has_work:
            self._left_by = reason
            self._is_finished = True
            return
        self._stop_requested = reason
        self._stop_at_s = self._clock.now_s()
        self._report_now = True

    @property
    def _has_work(self) -> bool:
        return self._attempt is not None or (self._wanted is not None and bool(self._wanted.ranks))

    @property
    def stop_requested(self) -> StopReason | None:
        """Return who asked for the end of the job, or of this node's part: a signal, the time limit."""
        return self._stop_requested or self._left_by

    def _check_store(self) -> None:
        """Ranks that have not met yet can't any more once their store is gone."""
        failure = self._store.poll()
        if failure is None:
            return
        log.warning("%s; rank 0 hosts the store from the next attempt on", failure.text)
        attempt = self._attempt
        if attempt is None or attempt.number not in failure.attempts or attempt.has_ended:
            return
        told = [rank.progress for rank in attempt.ranks.values()]
        if not all(progress is not None and progress.step_count for progress in told):
            self._launch_fault = LaunchFault("store", failure.text)
            self._report_now = True

    # What the guardian tells.

    def _take_event(self, event: Event) -> None:  # noqa: PLR0912 - a table
        attempt = self._attempt
        match event:
            case Emptied(through_attempt=through):
                self._empty_through = max(self._empty_through, through)
                self._report_now = True
            case GuardianLost(reason=reason):
                self._replace_guardian(reason)
            case LeaseExpired(through_attempt=through):
                self._note_lease_end(through)
            case KillPending(survivors=survivors):
                for one in survivors:
                    log.warning(
                        "process %d does not die (state %s, in %s)", one.pid, one.letter, one.wchan
                    )
            case _ if event.attempt == STANDBY_ATTEMPT:
                self._take_standby_event(event)
            case _ if attempt is None or event.attempt != attempt.number:
                return
            case Spawned(rank=number, pid=pid, start_ticks=ticks):
                rank = attempt.ranks[number]
                rank.pid, rank.start_ticks = pid, ticks
                if all(one.pid for one in attempt.ranks.values()):
                    self._tell_of_ranks(attempt)
                    self._report_now = True
            case SpawnFailed():
                self._take_failed_spawn(event)
            case Exiting(rank=number, exit_code=code, signal=signum):
                attempt.ranks[number].is_exiting = True
                self._report_now = True
                if code or signum:  # its memory takes long to free: the others need not wait
                    self._note_exit(attempt.ranks[number], code, signum)
            case Exited(rank=number, exit_code=code, signal=signum):
                self._note_exit(attempt.ranks[number], code, signum)

    def _note_lease_end(self, through: int) -> None:
        log.warning(
            "neither the controller nor most launchers of attempt %d were reached in time: "
            "its ranks are stopped",
            through,
        )
        self._leased_until_s = None
        self._kill_sent_through = max(self._kill_sent_through, through)
        if self._attempt is not None and self._attempt.number <= through:
            self._mark_signalled(self._attempt)

    def _take_failed_spawn(self, event: SpawnFailed) -> None:
        spawn = self._promoted.pop(event.rank, None)
        if spawn is not None and event.errno == errno.ESRCH:  # the standby had just died
            self._spawn(*spawn, may_promote=False)
            return
        name = errno.errorcode.get(event.errno, str(event.errno))
        text = f"rank {event.rank} can't be started: {event.message}"
        self._launch_fault = LaunchFault(name, text)
        self._report_now = True

    def _take_standby_event(self, event: Event) -> None:
        if self._standbys is None:
            return
        match event:
            case Spawned(rank=slot, pid=pid):
                self._standbys.note_spawned(slot, pid)
            case SpawnFailed(rank=slot, message=message):
                self._standbys.note_ended(slot, message)
            case Exited(rank=slot, exit_code=code, signal=signum):
                how = f"exit code {code}" if signum is None else f"signal {signum}"
                self._standbys.note_ended(slot, how)

    @staticmethod
    def _ask(call: Callable[..., None], *arguments: object) -> None:
        """Ask something of the guardian. Where it is gone, that is the next event."""
        with contextlib.suppress(LaunchError):
            call(*arguments)

    def _watch_guardian(self) -> None:
        """Wake a guardian that stands still, and end one that can't be woken."""
        try:
            state = read_state(self._guardian.pid)
        except SourceError:  # no descriptor left, or no memory: looked at again soon
            return
        letter = "" if state is None else state.letter
        care = self._guardian_watch.look(letter, self._needs_guardian, self._clock.now_s())
        if care is Care.WAKE:
            log.warning(
                "the guardian of the ranks (process %d) was stopped; it is woken: "
                "while it stands still no death is seen",
                self._guardian.pid,
            )
            self._guardian.wake()
        elif care is Care.END:
            log.warning(
                "the guardian of the ranks (process %d) stays stopped; it is killed, and its ranks with it",
                self._guardian.pid,
            )
            self._guardian.end()

    def _needs_guardian(self) -> bool:
        """Return whether the guardian owes word of a rank that is dead, or of an attempt's end."""
        if self._kill_sent_through > self._empty_through:
            return True
        attempt = self._attempt
        return attempt is not None and any(rank.is_unreaped for rank in attempt.ranks.values())

    def _replace_guardian(self, reason: str) -> None:
        """Start another guardian. The ranks died with the old one (PR_SET_PDEATHSIG)."""
        self._guardians_lost += 1
        if self._guardians_lost > GUARDIANS_LOST_MAX:
            raise LaunchError(f"the guardian of the ranks is gone once more: {reason}")
        log.warning("the guardian of the ranks is gone, and they with it: %s", reason)
        self._selector.unregister(self._guardian.fileno())
        self._guardian.close()
        until_s = self._clock.now_s() + LEFTOVERS_S_MAX
        left = fence_leftovers(
            self._plan.job_id,
            None,
            until_s,
            node=self._plan.mark_node,
            listed=read_list(str(self._runtime.process_list)),
            is_foreign=ForeignMarks(identify()),
        )
        if left.alive:
            pids = ", ".join(str(one.pid) for one in left.alive)
            raise LaunchError(f"the guardian is gone, and processes of the job remain: {pids}")
        self._guardian = self._start_guardian()
        self._leased_until_s = None
        self._word_left = None
        if self._standbys is not None:
            self._standbys.forget_all()
        self._selector.register(self._guardian.fileno(), selectors.EVENT_READ)
        attempt = self._attempt
        if attempt is None:
            return
        for rank in attempt.ranks.values():
            if rank.exit is None:
                self._note_exit(rank, None, signal.SIGKILL)
        self._empty_through = max(self._empty_through, attempt.number)

    def _note_exit(self, rank: LaunchedRank, code: int | None, signum: int | None) -> None:
        if rank.exit is not None:
            return  # known since it began to die
        out, err = self._output.last_lines(rank.rank)
        is_failure = code != 0
        rank.exited_at_s = self._clock.now_s()
        rank.exit = RankExit(
            age_s=0.0,
            exit_code=code,
            signal=signum,
            by_launcher=rank.signalled,
            oom_killed=signum == signal.SIGKILL and self._oom.take_new_kills() > 0,
            error=rank.read_error(err) if is_failure else None,
            last_lines=(err or out)[-20:] if is_failure else (),
        )
        self._report_now = True

    # What ought to be, and what is.

    def _take_orders(self) -> None:
        with self._inbox_lock:
            orders, self._inbox = self._inbox, []
        for order in orders:
            refusal = self._refuse(order)
            if refusal is None:
                self._epoch, self._controller_id = order.epoch, order.controller_id
                self._wanted = order
                self._followed_at_s = self._clock.now_s()
                standing = self._standing
                if order.ranks or standing is None or standing.attempt != order.attempt:
                    self._standing = order
                self._grace_until_s = None
                self._tell_findings(order)
                if self._hardware is not None:
                    self._hardware.ask(order.reads_hardware)
            elif refusal:
                log.warning("order %d refused: %s", order.revision, refusal)

    def _tell_findings(self, order: Order) -> None:
        """Have the node's agent know what is found about its ranks: all of it, each time."""
        now_s, told_at_s = self._clock.now_s(), self._told_at_s
        keys = [finding.key for finding in order.findings]
        self._told_at_s = {key: told_at_s.get(key, now_s) for key in keys}
        self._agent.tell(
            [
                ShownFinding(
                    kind=one.kind,
                    ranks=one.ranks,
                    section=one.section,
                    cause=one.cause,
                    factor=one.factor,
                    at_s=self._told_at_s[one.key],
                )
                for one in order.findings
            ]
        )

    def _refuse(self, order: Order) -> str | None:  # noqa: PLR0911 - a reason each
        """Return why an order is not for us, None where it is; empty: it is only an old one."""
        plan, wanted = self._plan, self._wanted
        if order.job_id != plan.job_id or order.node not in ("", plan.node):
            return f"it is for node {order.node!r} of job {order.job_id}"
        own_id = self._membership.launcher_id if self._membership else ""
        if order.launcher_id not in ("", own_id):
            return f"it is for launcher {order.launcher_id}, this is {own_id}"
        if order.epoch < self._epoch:
            return f"it is of controller epoch {order.epoch}, epoch {self._epoch} was already seen"
        if order.epoch == self._epoch and self._controller_id not in ("", order.controller_id):
            return f"it is of another controller of epoch {order.epoch}: {order.controller_id}"
        if order.attempt > ATTEMPT_MAX:
            return f"its attempt is {order.attempt}, {ATTEMPT_MAX} at most"
        if len(order.ranks) > self._output.slots:
            return f"it has {len(order.ranks)} ranks, this node runs {self._output.slots} at most"
        if wanted is None or order.epoch > wanted.epoch or order.revision > wanted.revision:
            return None
        return ""

    def _reconcile(self) -> None:
        order = self._wanted
        self._end_leftovers()
        self._stop_alone()
        if order is None or self._carried == (order.epoch, order.revision):
            self._enforce_grace()
            return
        attempt = self._attempt
        is_wanted = attempt is not None and attempt.number == order.attempt and bool(order.ranks)
        if not is_wanted:
            # An attempt that was said to be gone stays gone, whoever orders it.
            may_start = bool(order.ranks) and order.attempt > self._empty_through
            gone_through = order.attempt - 1 if may_start else order.attempt
            if attempt is not None:
                gone_through = max(gone_through, attempt.number)
            if self._empty_through < gone_through:
                self._stop_ranks(order, gone_through)
                return
            self._is_collecting(order)  # dumps that dead ranks have left
            self._forget_attempt()
            if may_start and not self._has_fence_answer(order):
                return
            if may_start:
                self._start(order)
        self._look_for_checkpoints(order)
        self._carried = (order.epoch, order.revision)
        self._report_now = True

    def _has_fence_answer(self, order: Order) -> bool:
        """Ask that only this attempt may publish, and return whether it is known how that went."""
        if self._membership is None:
            return True  # the controller, in this process, has done it
        now_s, storage, attempt = self._clock.now_s(), self._membership.storage, order.attempt
        if self._fence_asked is None or self._fence_asked[0] != attempt:
            self._fence_asked = (attempt, now_s)
            storage.ask_fence(attempt, None if order.restore is None else order.restore.path)
        if storage.advance is not None and storage.advance.attempt == attempt:
            return True
        return now_s - self._fence_asked[1] >= FENCE_S_MAX

    def _fence_error(self, attempt: int) -> str | None:
        if self._membership is None:
            return None
        done = self._membership.storage.advance
        if done is None or done.attempt != attempt:
            return f"the storage has not taken the fence of attempt {attempt} in {FENCE_S_MAX:g} s"
        return done.error

    def _look_for_checkpoints(self, order: Order) -> None:
        if self._membership is None or not order.finds_checkpoints:
            return
        if order.ranks:
            self._membership.storage.watch()
        elif self._found_for != (order.epoch, order.revision):
            self._found_for = (order.epoch, order.revision)
            self._membership.storage.ask_found(self._empty_through, order.revision)

    def _stop_alone(self) -> None:
        """End as planned without a controller's order, where none comes."""
        if self._membership is None or self._stop_at_s is None or self._wanted is None:
            return
        now_s, attempt = self._clock.now_s(), self._attempt
        if self._wanted.stop is Stop.GRACE or now_s - self._stop_at_s < STOP_ALONE_S:
            return
        if attempt is None or self._empty_through >= attempt.number:
            self._is_finished = True
        elif self._grace_until_s is None:
            log.warning("the controller does not answer: the ranks are stopped without it")
            self._grace_until_s = now_s + self._plan.grace_s
            self._mark_signalled(attempt)
            self._ask(self._guardian.signal, attempt.number, signal.SIGTERM)

    def _keep_lease(self) -> None:
        """Have the guardian stop the ranks at the end of the lease, and tell peers how it stands."""
        if self._membership is None:
            return
        peers, attempt, order = self._membership.peers, self._attempt, self._wanted
        peers.tell(attempt.number if attempt else 0, self._empty_through)
        is_running = attempt is not None and self._empty_through < attempt.number
        if attempt is None or not is_running:
            if self._leased_until_s is not None:
                self._leased_until_s = None
                self._ask(self._guardian.lease, 0, None)
            peers.keep(None)
            return
        if order is None or order.attempt != attempt.number or not order.ranks:
            return  # it is being stopped; the lease goes on
        if order.lease_s <= 0 or self._kill_sent_through >= attempt.number:
            return
        peers.keep(Lease(attempt.number, order.peers, order.lease_s))
        until_s = peers.reached_at_s + order.lease_s
        told_s = self._leased_until_s
        if told_s is None or abs(until_s - told_s) >= LEASE_STEP_S:
            self._leased_until_s = until_s
            self._ask(self._guardian.lease, attempt.number, until_s)

    def _stop_ranks(self, order: Order, through: int) -> None:
        now_s = self._clock.now_s()
        attempt = self._attempt
        is_patient = order.stop is Stop.GRACE and attempt is not None and not attempt.has_ended
        if is_patient and attempt is not None:
            if self._grace_until_s is None:
                self._grace_until_s = now_s + order.grace_s
                self._mark_signalled(attempt)
                self._ask(self._guardian.signal, attempt.number, signal.SIGTERM)
            if now_s < self._grace_until_s:
                return
        if self._kill_sent_through < through:
            if self._is_collecting(order):
                return
            self._kill_sent_through = through
            if attempt is not None:
                self._mark_signalled(attempt)
            self._ask(self._guardian.kill_through, through)

    def _is_collecting(self, order: Order) -> bool:
        """Return whether the kill has to wait for evidence, which is begun where it is wanted."""
        attempt, evidence = self._attempt, self._evidence
        if order.collect is None or evidence is None or attempt is None:
            return False
        sources = [rank.source() for rank in attempt.ranks.values()]
        within_s = 0.0 if attempt.has_ended else order.collect_s
        evidence.start(order.collect, attempt.number, sources, within_s, self._wake)
        return evidence.wait_s(self._clock.now_s()) > 0

    def _enforce_grace(self) -> None:
        """A second interrupt kills even where no order came."""
        attempt = self._attempt
        due = self._grace_until_s is not None and self._clock.now_s() >= self._grace_until_s
        if due and attempt is not None and self._kill_sent_through < attempt.number:
            self._kill_sent_through = attempt.number
            self._mark_signalled(attempt)
            self._ask(self._guardian.kill_through, attempt.number)

    def _end_leftovers(self) -> None:
        """Children that outlive an attempt which ended by itself get a moment, then SIGKILL."""
        attempt = self._attempt
        if attempt is None or not attempt.ranks or not attempt.has_ended:
            self._leftover_until_s = None
            return
        if self._kill_sent_through >= attempt.number:
            return
        now_s = self._clock.now_s()
        if self._leftover_until_s is None:
            self._leftover_until_s = now_s + LEFTOVER_S
        is_clean = all(rank.exit and rank.exit.exit_code == 0 for rank in attempt.ranks.values())
        plan = self._plan
        left = find_marked(plan.job_id, attempt.number, plan.mark_node) if is_clean else []
        if left and now_s < self._leftover_until_s:
            self._leftover_until_s = min(self._leftover_until_s, now_s + LEFTOVER_S)
            return
        self._kill_sent_through = attempt.number
        self._ask(self._guardian.kill_through, attempt.number)

    def _mark_signalled(self, attempt: LaunchedAttempt) -> None:
        for rank in attempt.ranks.values():
            rank.signalled = rank.signalled or rank.exit is None

    def _start(self, order: Order) -> None:
        """Start the ranks of an order; what fails here is reported and nothing is left behind."""
        attempt = self._attempt = LaunchedAttempt(order.attempt, self._clock.now_s())
        self._launch_fault = None
        self._promoted.clear()
        self._oom.take_new_kills()
        try:
            for local_rank, number in enumerate(order.ranks):
                files, reader = self._runtime.make_rank_files(
                    order.attempt, number, local_rank, order.world_size
                )
                attempt.ranks[number] = LaunchedRank(number, local_rank, files, reader)
            if (fence_error := self._fence_error(order.attempt)) is not None:
                raise LaunchError(fence_error)
            rendezvous = self._open_rendezvous(order)
            for rank in attempt.ranks.values():
                self._spawn(order, rank, rendezvous)
        except LaunchError as error:
            self._launch_fault = LaunchFault("refused", str(error))
            self._ask(self._guardian.kill_through, order.attempt)

    def _open_rendezvous(self, order: Order) -> Rendezvous:
        if order.rendezvous is None:
            return self._store.open_attempt(order.attempt)
        if order.group_rank == 0:
            return self._store.open_attempt(order.attempt, order.rendezvous.port)
        return self._store.join_attempt(order.rendezvous)

    def _spawn(
        self, order: Order, rank: LaunchedRank, rendezvous: Rendezvous, *, may_promote: bool = True
    ) -> None:
        environment = rank_environment(
            self._plan.environment,
            order,
            rank.local_rank,
            rendezvous,
            rank.files,
            run_id=self._plan.run_id,
            role=self._plan.role,
            site_folder=self._runtime.site,
            fence_file=self._plan.fence_file,
            is_auto=self._plan.is_auto,
            is_old_torch=self._plan.is_old_torch,
            node=self._plan.mark_node,
            is_virtual_local_rank=self._plan.is_virtual_local_rank,
            launcher=own_mark(),
        )
        rank.recorder = recorder_files(environment, rank.rank, self._plan.folder)
        out, err = self._output.open_rank(order.attempt, rank.rank, rank.local_rank)
        spawn = Spawn(
            attempt=order.attempt,
            rank=rank.rank,
            argv=fill(self._plan.command.argv, order.restore, rank.local_rank),
            env=environment,
            cwd=str(self._plan.folder),
            stdout_fd=out,
            stderr_fd=err,
            stdin_fd=self._plan.stdin,
            cpus=self._plan.cpus[rank.local_rank] if self._plan.cpus else (),
        )
        try:
            pool = self._standbys if may_promote else None
            if pool is not None and pool.promote(self._guardian, spawn):
                self._promoted[rank.rank] = (order, rank, rendezvous)
            else:
                self._guardian.spawn(spawn)
        finally:
            os.close(out)
            os.close(err)

    def _forget_attempt(self) -> None:
        if self._attempt is None:
            return
        self._close_ranks(self._attempt)
        self._agent.withdraw()
        if self._hardware is not None:
            self._hardware.watch({})
        self._store.drop(self._attempt.number)
        self._runtime.remove_attempt(self._attempt.number)
        self._attempt = None

    @staticmethod
    def _close_ranks(attempt: LaunchedAttempt) -> None:
        for rank in attempt.ranks.values():
            rank.reader.close()

    # What is reported.

    def _report_if_due(self) -> None:
        now_s = self._clock.now_s()
        if not self._report_now and now_s - self._reported_at_s < self._report_pause_s():
            return
        self._report_now = False
        self._reported_at_s = now_s
        ranks = list(self._attempt.ranks.values()) if self._attempt else []
        fault = self._launch_fault
        report = Report(
            version=VERSION,
            node=self._plan.node,
            boot_id=self._plan.boot_id,
            job_id=self._plan.job_id,
            revision=self._carried[1],
            attempt=self._attempt.number if self._attempt else 0,
            ranks=tuple(rank.report(self._clock.now_s) for rank in ranks),
            empty_through=self._empty_through,
            launch_error=None if fault is None else fault.text,
            launch_fault="" if fault is None else fault.name,
            stop_requested=self._stop_requested,
            collected=self._evidence.take_report() if self._evidence else None,
            hardware=self._hardware.take_report() if self._hardware else None,
        )
        if self._membership is not None:
            self._keep_lease()  # peers hear of an attempt's end before the controller does
            report = self._sign(report, self._membership)
        self._send_report(report)

    def _sign(self, report: Report, membership: Membership) -> Report:
        """Return the report with what only a launcher among several has to say."""
        self._report_number += 1
        storage, peers = membership.storage, membership.peers
        is_finder = self._wanted is not None and self._wanted.finds_checkpoints
        found = storage.found
        if found is not None and found.revision != self._found_for[1]:
            found = None  # of a look that another order had asked for
        return replace(
            report,
            launcher_id=membership.launcher_id,
            number=self._report_number,
            slots=membership.slots,
            rendezvous=self._propose(),
            peer_endpoint=peers.endpoint,
            unreachable=peers.unreachable,
            fence_attempt=storage.fence_attempt,
            found=found if is_finder else None,
            launcher_started_s=self._launched_at_s,
            epoch=self._epoch,
            controller_id=self._controller_id,
            claim=self._claim(),
        )

    def _claim(self) -> Claim | None:
        """Return what to tell a controller that is not the one whose orders we follow."""
        followed, answered_by = (self._epoch, self._controller_id), self._answered_by
        if answered_by in ((0, ""), followed) or not self._controller_id:
            return None
        order = self._standing
        assert order is not None, "a controller that is followed has sent an order"
        return Claim(
            contact_age_s=self._clock.now_s() - self._followed_at_s,
            attempt=order.attempt,
            ranks=order.ranks,
            world_size=order.world_size,
            group_rank=order.group_rank,
            group_count=order.group_count,
            restarts=order.restarts,
            restore=order.restore,
            rendezvous=order.rendezvous,
            peers=order.peers,
        )

    def _propose(self) -> Endpoint | None:
        try:
            return self._store.propose()
        except LaunchError as error:  # every port is taken: told when an attempt is to start
            log.warning("no rendezvous can be offered: %s", error)
            return None

    def _report_pause_s(self) -> float:
        pause_s = REPORT_FAST_S if self._is_in_a_hurry() else REPORT_S
        if self._membership is None:
            return pause_s
        return report_pause_s(pause_s, self._wanted.group_count if self._wanted else 1)

    def _tell_of_ranks(self, attempt: LaunchedAttempt) -> None:
        """Tell the node agent and `rankmend status` which processes the ranks are."""
        self._runtime.write_ranks(
            attempt.number,
            [
                {"rank": rank.rank, "local_rank": rank.local_rank, "pid": rank.pid}
                for rank in attempt.ranks.values()
            ],
        )
        if self._hardware is not None:
            self._hardware.watch({rank.rank: rank.pid for rank in attempt.ranks.values()})
        self._agent.offer(
            uuid.UUID(self._plan.job_id),
            self._plan.job_name,
            attempt.number,
            [
                (OfferedRank(rank.rank, rank.local_rank, rank.pid), rank.files.progress)
                for rank in attempt.ranks.values()
            ],
        )

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"\0")


@contextlib.contextmanager
def _signals_to(descriptor: int, numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Have the numbers of arriving signals written to ``descriptor``."""
    wanted = [
        number
        for number in set(numbers)
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup, or a shell's background job
    ]
    previous = {number: signal.signal(number, lambda *_: None) for number in wanted}
    previous_descriptor = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_descriptor)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _suspend() -> None:
    """Stop this process as Ctrl-Z asks; its ranks and its guardian, in other sessions, go on."""
    log.warning("suspended by Ctrl-Z: the ranks train on, and nothing recovers until `fg` or `bg`")
    console.flush(_SUSPEND_FLUSH_S)
    os.kill(os.getpid(), signal.SIGSTOP)
    log.warning("continued")
