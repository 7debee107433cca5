"""One node's share of a job: makes the running ranks match the newest order, and reports.

The loop observes, asks `decision.decide` what to do, and does it. Everything that could block
(the console, the journal, checkpoints) has its own thread or process; this loop waits only on
descriptors.
"""

import contextlib
import errno
import logging
import selectors
import signal
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from detectors.failed.failed_ranks import CRASHES
from rankmend.checkpoint_figures import CheckpointFigures
from rankmend.clock import Clock
from rankmend.errors import LaunchError
from rankmend.milestones import ProcessMilestone, name_milestone
from recovery.checkpoints.pins import CheckpointPins
from recovery.checkpoints.snapshots.copies.node_copies import CopierLink, NodeCopies
from recovery.checkpoints.snapshots.leftovers import remove_leftovers
from recovery.checkpoints.snapshots.watch import SnapshotWatch
from recovery.launcher.agent_link import AgentLink
from recovery.launcher.decision import pace
from recovery.launcher.decision.decide import FENCE_S_MAX, decide
from recovery.launcher.decision.launcher_state import (
    AskForFence,
    AskRanksToStop,
    CollectEvidence,
    ContinueRanks,
    FindCheckpoints,
    FollowedOrders,
    ForgetAttempt,
    KeepLease,
    KillThrough,
    LauncherAction,
    LauncherState,
    LeaseRanks,
    Leave,
    ReleaseCheckpoint,
    StartRanks,
    WatchCheckpoints,
)
from recovery.launcher.evidence.evidence_collector import EvidenceCollector
from recovery.launcher.evidence.surroundings import read_crashed_in
from recovery.launcher.guardian.guardian_client import Guardian
from recovery.launcher.guardian.keeper import GuardianKeeper
from recovery.launcher.guardian.packets import (
    STANDBY_ATTEMPT,
    Emptied,
    Event,
    Exited,
    Exiting,
    GuardianLost,
    KillPending,
    LeaseExpired,
    ProgressHolder,
    Spawned,
    SpawnFailed,
)
from recovery.launcher.host.hardware import HardwareWatch
from recovery.launcher.host.node_probe import NodeProbe
from recovery.launcher.host.oom import OomCounter
from recovery.launcher.inbox import Inbox, ReportAnswer, Wakeups, signals_to, suspend
from recovery.launcher.membership.node_membership import Lease, Membership
from recovery.launcher.processes.process_tree import find_marked
from recovery.launcher.rank_announcer import RankAnnouncer
from recovery.launcher.rank_starter import RankStarter
from recovery.launcher.ranks.contained import read_end
from recovery.launcher.ranks.launch_plan import LaunchPlan
from recovery.launcher.ranks.launched import LaunchedAttempt, LaunchedRank, LaunchFault
from recovery.launcher.ranks.rank_output import Output
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.launcher.ranks.waiting_processes import WaitingProcesses
from recovery.launcher.rendezvous.rendezvous_store import RendezvousStore
from recovery.launcher.reporter import Reporter
from recovery.messages.copying import CopyRequest
from recovery.messages.exchange import Found, Order, Report, StopReason
from recovery.messages.probing import ProbeRequest

log = logging.getLogger(__name__)

EVIDENCE_END_S: Final = 2.0  # for a collection to finish writing when the job has its outcome
_FORWARDED: Final = (signal.SIGUSR1, signal.SIGUSR2)
# Decisions per turn: a stop, a start and its lease take five. The next report's turn continues with
# the rest.
_PASSES_MAX: Final = 16


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
        membership: Membership,
        waiting: WaitingProcesses | None = None,
        *,
        takes_signals: bool = True,
        evidence: EvidenceCollector | None = None,
        hardware: HardwareWatch | None = None,
        pins: CheckpointPins | None = None,
        copier: CopierLink | None = None,
    ) -> None:
        self._plan = plan
        self._keeper = GuardianKeeper(
            start_guardian, plan.job_id, plan.mark_node, runtime.process_list, clock
        )
        self._starter = RankStarter(plan, store, output, runtime, waiting)
        self._announcer = RankAnnouncer(plan, runtime, agent, hardware)
        self._wakeups = Wakeups()
        self._snapshots = SnapshotWatch(
            runtime.snapshots, uuid.UUID(plan.job_id), clock, self._note_snapshots
        )
        self._copies: NodeCopies | None = None
        if copier is not None:
            folder = runtime.snapshots
            self._copies = NodeCopies(folder, plan.node, self._snapshots, copier, clock)
        self._probe = NodeProbe(plan.node, clock) if membership.outlives_launcher else None
        self._reporter = Reporter(
            plan,
            store,
            clock,
            membership,
            evidence,
            hardware,
            self._snapshots,
            self._copies,
            self._probe,
        )
        self._store = store
        self._output = output
        self._runtime = runtime
        self._clock = clock
        self._send_report = send_report
        self._waiting = waiting
        self._membership = membership
        self._evidence = evidence
        self._pins = pins
        self._takes_signals = takes_signals  # only the main thread of a process can
        self._oom = OomCounter()
        self._inbox = Inbox()
        self._selector = selectors.DefaultSelector()
        self._orders = FollowedOrders(
            plan.job_id,
            plan.node,
            membership.launcher_id,
            output.slots,
            followed_at_s=clock.now_s(),
        )
        self._state = LauncherState(
            can_collect=evidence is not None,
            grace_s=plan.grace_s,
            report_pause_min_s=membership.report_pause_min_s,
        )
        self._attempt: LaunchedAttempt | None = None
        self._launch_fault: LaunchFault | None = None
        self._stop_requested: StopReason | None = None
        self._left_by: StopReason | None = None  # why a node that runs nothing should leave
        self._interrupts = 0
        self._is_finished = False
        self._is_time_up = False  # set by another thread
        self._reported_at_s = 0.0
        self._report_now = True
        self._reported_found: Found | None = None  # what was found in the checkpoint folder
        self._has_snapshot_news = False  # set by the thread that reads them
        self._started_at_s = clock.now_s()

    # From other threads.

    def send(self, order: Order) -> None:
        """Take an order; only the newest counts."""
        self._inbox.put_order(order)
        self._wakeups.wake()

    def note_answer(self, epoch: int, controller_id: str) -> None:
        """Note which controller has accepted a report; an older controller gives no id."""
        if controller_id:
            self._inbox.put_answer(ReportAnswer(epoch, controller_id, self._clock.now_s()))

    def note_copies(self, request: CopyRequest) -> None:
        """Take what the controller asks about copies of snapshots on other nodes."""
        self._inbox.put_copies(request)

    def note_probe(self, request: ProbeRequest | None) -> None:
        """Take what the controller asks of this node's part in a probe of the network."""
        self._inbox.put_probe(request)

    def show_checkpoint(self, figures: CheckpointFigures) -> None:
        """Have the node's agent export these figures of the job's checkpoints."""
        self._inbox.put_figures(figures)

    def _note_snapshots(self) -> None:
        """Report soon what has changed in the snapshots."""
        self._has_snapshot_news = True
        self._wakeups.wake()

    def end_time(self) -> None:
        """Stop the job as at its time limit."""
        self._is_time_up = True
        self._wakeups.wake()

    @property
    def epoch(self) -> int:
        """Return the highest controller epoch seen; 0 for none."""
        return self._orders.epoch

    def finish(self) -> None:
        """End `run`: the job has its outcome."""
        self._is_finished = True
        self._wakeups.wake()

    @property
    def stop_requested(self) -> StopReason | None:
        """Return why the job, or this node's part, should end: a signal, the time limit."""
        return self._stop_requested or self._left_by

    @property
    def guardian_pid(self) -> int:
        return self._keeper.guardian.pid

    # The loop.

    def run(self, nothing_left_through: int) -> None:
        """Serve until `finish`. ``nothing_left_through``: no process of the attempts up to this one is left."""
        if not self._plan.keeps_snapshots:
            self._runtime.remove_snapshots()  # a killed launcher of this job may have left some
        self._runtime.lock_snapshots()
        remove_leftovers(self._runtime.path.parent, self._clock.now_s())
        self._note_empty(nothing_left_through)
        self._announcer.start()
        self._membership.peers.start()
        self._membership.storage.start(self._wakeups.wake)
        self._selector.register(self._wakeups, selectors.EVENT_READ)
        self._selector.register(self._keeper.guardian.fileno(), selectors.EVENT_READ)
        taken = (*self._plan.stop_signals, *_FORWARDED, signal.SIGTSTP, signal.SIGWINCH)
        catch = signals_to(self._wakeups.descriptor, taken)
        with catch if self._takes_signals else contextlib.nullcontext():
            while not self._is_finished:
                self._selector.select(self._wait_s())
                self._turn()
        self._selector.close()

    def _turn(self) -> None:
        """Take in events, act on them, and report."""
        signals = self._wakeups.take_signals()
        self._take_orders()  # first, because an ordered stop must not undo a second interrupt
        for number in signals:
            self._take_signal(number)
        for event in self._keeper.guardian.read_events():
            self._take_event(event)
        self._check_time()
        self._keeper.look_after(self._needs_guardian)
        self._check_store()
        self._announcer.show_checkpoint(self._inbox.take_figures())
        self._announcer.tick()
        self._runtime.mend()
        self._snapshots.tick()
        self._copy_snapshots()
        self._test_network()  # before ranks start: a probe gives way to them
        self._keeper.leave_word(self._reporter.make_word(self._orders))
        self._settle()
        self._report_if_due()
        self._look_after_waiting()  # last: the report has looked which steps the ranks have made

    def _copy_snapshots(self) -> None:
        request = self._inbox.take_copies()
        if self._copies is None:
            return
        if request is not None:
            self._copies.take_request(request)
        self._copies.believe(self._membership.peers.secrets)
        attempt = self._attempt
        is_running = attempt is not None and not attempt.has_ended
        ranks = attempt.ranks if attempt is not None and is_running else ()
        number = 0 if attempt is None else attempt.number
        if self._copies.tick(number, ranks) and not is_running:
            self._report_now = True

    def _test_network(self) -> None:
        probe, request = self._probe, self._inbox.take_probe()
        if probe is None:
            return
        if request is not None:
            probe.take_request(request[0])
        newest = self._orders.newest
        has_ranks = self._attempt is not None or (newest is not None and bool(newest.ranks))
        if probe.tick(has_ranks=has_ranks):
            self._report_now = True

    def _look_after_waiting(self) -> None:
        if self._waiting is not None:
            now_s = self._clock.now_s()
            may_start = pace.is_calm(self._orders.newest, self._now(), now_s)
            guardian = self._keeper.guardian
            self._waiting.tick(guardian, may_start=may_start)
            if may_start and self._waiting.has_ready_server:
                self._store.move(self._waiting.store_fork(guardian))

    def close(self) -> bool:
        """Leave no process and no file behind; return whether no process is proved to be left."""
        if self._attempt is not None:
            self._attempt.close()
        is_empty = self._keeper.guardian.close()
        if is_empty and self._attempt is not None:
            self._note_empty(self._attempt.number)
            self._tell_peers()
        if self._waiting is not None:
            self._waiting.close()
        if self._evidence is not None:
            self._evidence.close(EVIDENCE_END_S)
        self._announcer.close()
        if self._pins is not None:
            self._pins.close()
        self._membership.peers.close()
        self._membership.storage.close()
        self._snapshots.close()
        if self._copies is not None:
            self._copies.close()
        if self._probe is not None:
            self._probe.close()
        self._runtime.remove()
        self._wakeups.close()
        return is_empty

    def last_report(self) -> Report | None:
        """Return the last report, for after `close` has proved that no process is left."""
        word = self._reporter.make_word(self._orders)
        return None if word is None else word.report(self._state.empty_through)

    def _wait_s(self) -> float:
        if self._report_now:
            return 0.0
        now_s = self._clock.now_s()
        return pace.wait_s(self._orders.newest, self._now(), self._reported_at_s, now_s)

    # What has happened.

    def _take_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGTSTP:
            suspend()
        elif number is signal.SIGWINCH:
            self._output.resize()
        elif number in self._plan.stop_signals:
            self._interrupts += 1
            if self._stop_requested is None:
                self.request_stop(StopReason(number.name))
            elif number is signal.SIGINT and self._interrupts > 1:
                log.warning("second interrupt: killing the ranks")
                self._state = replace(self._state, grace_until_s=self._clock.now_s())
        elif number in _FORWARDED and self._attempt is not None:
            self._signal_ranks(number)

    def _signal_ranks(self, number: signal.Signals, attempt: int | None = None) -> None:
        """Send a signal to the processes that train, as far as they are known, and to the leaders of the other ranks."""
        running = self._attempt
        holders: tuple[ProgressHolder, ...] = ()
        if running is not None and attempt in (None, running.number):
            attempt, holders = running.number, running.holders(self._clock.now_s())
        self._keeper.ask(self._keeper.guardian.signal, attempt, number, None, holders)

    def _check_time(self) -> None:
        if self._stop_requested is not None:
            return
        limit_s = self._plan.time_limit_s
        is_over = limit_s is not None and self._clock.now_s() - self._started_at_s >= limit_s
        if is_over or self._is_time_up:
            self.request_stop(StopReason.TIME_LIMIT)

    def request_stop(self, reason: StopReason) -> None:
        """Request a planned stop of the job; a node without ranks only leaves, if the others can continue."""
        newest = self._orders.newest
        has_work = self._attempt is not None or (newest is not None and bool(newest.ranks))
        if self._membership.outlives_launcher and not has_work:
            self._left_by = reason
            self._is_finished = True
            return
        self._stop_requested = reason
        self._state = replace(self._state, stop_asked_at_s=self._clock.now_s())
        self._report_now = True

    def _check_store(self) -> None:
        """Handle a lost store: ranks that have not met yet can no longer meet."""
        failure = self._store.poll()
        if failure is None:
            return
        log.warning("%s", failure.text)
        attempt = self._attempt
        if attempt is None or attempt.number not in failure.attempts or attempt.has_ended:
            return
        reported = [rank.progress for rank in attempt.ranks.values()]
        if not all(progress is not None and progress.step_count for progress in reported):
            self._launch_fault = LaunchFault("store", failure.text)
            self._report_now = True

    def _take_event(self, event: Event) -> None:  # noqa: PLR0912 - a table
        attempt = self._attempt
        match event:
            case Emptied(through_attempt=through):
                self._note_empty(through)
                self._report_now = True
            case GuardianLost(reason=reason):
                self._replace_guardian(reason)
            case LeaseExpired(through_attempt=through):
                self._note_lease_end(through)
            case KillPending(survivors=survivors):
                for survivor in survivors:
                    log.warning(
                        "process %d does not die (state %s, in %s)",
                        survivor.pid,
                        survivor.letter,
                        survivor.wchan,
                    )
            case _ if event.attempt == STANDBY_ATTEMPT:
                self._store.take_event(event)
                if self._waiting is not None:
                    self._waiting.take_event(event)
            case _ if attempt is None or event.attempt != attempt.number:
                return
            case Spawned(rank=number, pid=pid, start_ticks=ticks):
                rank = attempt.ranks[number]
                rank.pid, rank.start_ticks = pid, ticks
                if all(item.pid for item in attempt.ranks.values()):
                    self._announcer.announce(attempt)
                    self._report_now = True
            case SpawnFailed(rank=number) if self._never_begins(attempt.ranks[number], event):
                self._note_exit(attempt.ranks[number], None, signal.SIGTERM)
            case SpawnFailed():
                if not self._starter.start_again(event, self._keeper.guardian):
                    name = errno.errorcode.get(event.errno, str(event.errno))
                    text = f"rank {event.rank} can't be started: {event.message}"
                    self._launch_fault = LaunchFault(name, text)
                    self._report_now = True
            case Exiting(rank=number, exit_code=code, signal=signum):
                attempt.ranks[number].is_exiting = True
                self._report_now = True
                if code or signum:  # its memory takes long to free, and the others need not wait
                    self._note_exit(attempt.ranks[number], code, signum)
            case Exited(rank=number, exit_code=code, signal=signum):
                self._note_exit(attempt.ranks[number], code, signum)

    def _never_begins(self, rank: LaunchedRank, failed: SpawnFailed) -> bool:
        """Return whether this rank is none to start again: it is being stopped, or its lease ended before it was forked.

        It has ended, then: a controller without a report of it would wait for its process.
        """
        return self._is_stopping(rank) or (rank.signalled and failed.errno == errno.ESTALE)

    def _is_stopping(self, rank: LaunchedRank) -> bool:
        """Return whether this rank's stop was requested and it may take its time: one that never began has ended."""
        attempt = self._attempt
        is_killed = attempt is None or self._state.kill_sent_through >= attempt.number
        return rank.signalled and not is_killed

    def _note_empty(self, through: int) -> None:
        through = max(self._state.empty_through, through)
        self._state = replace(self._state, empty_through=through)
        self._snapshots.settle(through)
        name_milestone("launcher", ProcessMilestone.FENCED, through)

    def _note_lease_end(self, through: int) -> None:
        log.warning(
            "neither the controller nor most launchers of attempt %d were reached in time: "
            "stopping its ranks",
            through,
        )
        killed = max(self._state.kill_sent_through, through)
        self._state = replace(self._state, leased_until_s=None, kill_sent_through=killed)
        if self._attempt is not None and self._attempt.number <= through:
            self._attempt.mark_signalled()

    def _needs_guardian(self) -> bool:
        """Return whether the guardian owes a report about a dead rank or an attempt's end."""
        if self._state.kill_sent_through > self._state.empty_through:
            return True
        attempt = self._attempt
        return attempt is not None and any(rank.is_unreaped for rank in attempt.ranks.values())

    def _replace_guardian(self, reason: str) -> None:
        self._selector.unregister(self._keeper.guardian.fileno())
        self._keeper.replace(reason)
        self._selector.register(self._keeper.guardian.fileno(), selectors.EVENT_READ)
        self._state = replace(self._state, leased_until_s=None)
        if self._waiting is not None:
            self._waiting.forget_all()
        attempt = self._attempt
        if attempt is None:
            return
        for rank in attempt.ranks.values():
            self._note_exit(rank, None, signal.SIGKILL)
        self._note_empty(attempt.number)

    def _note_exit(self, rank: LaunchedRank, code: int | None, signum: int | None) -> None:
        if rank.exit is not None:
            return  # known since it began to die
        if rank.is_contained:
            code, signum = read_end(code, signum)
        oom_killed = signum == signal.SIGKILL and self._oom.take_new_kills() > 0
        has_crashed = signum in CRASHES and not rank.signalled
        library = read_crashed_in(rank.own_pids()) if has_crashed else ""
        lines = self._output.last_lines(rank.rank)
        now_s = self._clock.now_s()
        rank.note_exit(code, signum, lines, now_s, oom_killed=oom_killed, crash_library=library)
        self._report_now = True

    def _take_orders(self) -> None:
        now_s = self._clock.now_s()
        for order in self._inbox.take_orders():
            refusal = self._orders.refusal(order)
            if refusal is None:
                self._orders = self._orders.follow(order, now_s)
                self._state = replace(self._state, grace_until_s=None)
                self._announcer.take_order(order, now_s)
            elif refusal:
                log.warning("order %d refused: %s", order.revision, refusal)
        self._orders = self._inbox.hear_answer(self._orders)

    # What follows from it.

    def _now(self) -> LauncherState:
        """Return the state with the attempt and the evidence as of this moment."""
        evidence, attempt = self._evidence, self._attempt
        wait_s = 0.0 if evidence is None else evidence.wait_s(self._clock.now_s())
        facts = None if attempt is None else attempt.facts()
        return replace(self._state, attempt=facts, evidence_wait_s=wait_s)

    def _observe(self) -> LauncherState:
        """Return the state with everything that a decision needs."""
        state, attempt = self._now(), self._attempt
        is_over = state.attempt is not None and state.kill_sent_through < state.attempt.number
        if is_over and attempt is not None and attempt.ranks and attempt.has_ended_well:
            plan = self._plan
            left = find_marked(plan.job_id, attempt.number, plan.mark_node)
            state = replace(state, attempt=attempt.facts(has_leftovers=bool(left)))
        advance = self._membership.storage.advance
        return replace(
            state,
            fenced_attempt=None if advance is None else advance.attempt,
            reached_at_s=self._membership.peers.reached_at_s,
        )

    def _settle(self) -> None:
        """Decide and act until there is nothing left to do."""
        for _pass in range(_PASSES_MAX):
            before = self._observe()
            decision = decide(self._orders.newest, before, self._clock.now_s())
            self._state = decision.state
            for action in decision.actions:
                self._act(action)
            if decision.state.carried != before.carried:
                self._report_now = True
            if not decision.actions:
                break
        self._tell_peers()  # they must learn of an attempt's end before the controller does

    def _act(self, action: LauncherAction) -> None:  # noqa: PLR0912 - a table
        keeper, attempt = self._keeper, self._attempt
        match action:
            case AskRanksToStop(attempt=number, is_alone=is_alone):
                if is_alone:
                    log.warning("the controller does not answer: stopping the ranks without it")
                self._mark_signalled()
                self._signal_ranks(signal.SIGTERM, number)
            case ContinueRanks(ranks=ranks):
                self._continue(ranks)
            case KillThrough(attempt=number):
                self._mark_signalled()
                keeper.ask(keeper.guardian.kill_through, number)
            case CollectEvidence():
                self._collect(action)
            case ForgetAttempt():
                assert attempt is not None, "it was observed"
                self._announcer.withdraw()
                self._starter.forget(attempt)
                self._attempt = None
            case StartRanks(order=order):
                self._start(order)
            case LeaseRanks(attempt=number, until_s=until_s, kill_bound_s=kill_bound_s):
                may = attempt is None or until_s is None or attempt.lease(until_s, kill_bound_s)
                if may:
                    keeper.ask(keeper.guardian.lease, number, until_s)
            case Leave():
                self._is_finished = True
            case ReleaseCheckpoint(attempt=number):
                if self._pins is not None:
                    self._pins.release(number)
            case _:
                if isinstance(action, AskForFence) and self._pins is not None:
                    self._pins.hold(action.attempt, action.restore_path)
                _act_as_member(action, self._membership)

    def _continue(self, ranks: tuple[int, ...]) -> None:
        """Let the processes of these ranks go on, as far as a signal has stopped them."""
        assert self._attempt is not None, "it was observed"
        for number in ranks:
            rank = self._attempt.ranks.get(number)
            pids = [] if rank is None else rank.continue_stopped(self._clock.now_s())
            if pids:
                who = ", ".join(map(str, pids))
                log.warning(
                    "rank %d was stopped by a signal (process %s); continuing it (SIGCONT)",
                    number,
                    who,
                )

    def _mark_signalled(self) -> None:
        if self._attempt is not None:
            self._attempt.mark_signalled()

    def _collect(self, action: CollectEvidence) -> None:
        assert self._attempt is not None, "it was observed"
        assert self._evidence is not None, "it was observed"
        sources = [rank.source() for rank in self._attempt.ranks.values()]
        self._evidence.start(
            action.incident_id, action.attempt, sources, action.within_s, self._wakeups.wake
        )

    def _start(self, order: Order) -> None:
        """Start the ranks of an order; a failure is reported and leaves nothing behind."""
        attempt = self._attempt = LaunchedAttempt(order.attempt, self._clock.now_s())
        self._launch_fault = None
        self._oom.take_new_kills()
        try:
            self._starter.make_ranks(order, attempt)
            if (fence_error := self._fence_error(order.attempt)) is not None:
                raise LaunchError(fence_error)
            self._starter.start(order, attempt, self._keeper.guardian)
            self._snapshots.expect(order.attempt, attempt.ranks)
        except LaunchError as error:
            self._launch_fault = LaunchFault("refused", str(error))
            self._keeper.ask(self._keeper.guardian.kill_through, order.attempt)

    def _fence_error(self, attempt: int) -> str | None:
        done = self._membership.storage.advance
        if done is None or done.attempt != attempt:
            return f"the storage did not accept the fence of attempt {attempt} within {FENCE_S_MAX:g} s"
        return done.error

    def _tell_peers(self) -> None:
        number = self._attempt.number if self._attempt else 0
        self._membership.peers.tell(number, self._state.empty_through)

    def _report_if_due(self) -> None:
        now_s = self._clock.now_s()
        if self._has_snapshot_news:
            self._has_snapshot_news = False
            self._report_now |= self._attempt is None or self._attempt.has_ended
        found = self._membership.storage.found
        if found is not self._reported_found:  # the job waits for it
            self._reported_found = found
            self._report_now |= found is not None
        pause_s = pace.report_pause_s(self._orders.newest, self._now(), now_s)
        if not self._report_now and now_s - self._reported_at_s < pause_s:
            return
        self._report_now = False
        self._reported_at_s = now_s
        report = self._reporter.write(
            self._attempt,
            self._state,
            self._orders,
            self._launch_fault,
            self._stop_requested,
            None if self._pins is None else self._pins.put_back,
        )
        if self._attempt is not None:
            self._announcer.follow(self._attempt)  # the report has looked for their processes
        self._send_report(report)
        name_milestone("launcher", ProcessMilestone.REPORTED, report.number)


def _act_as_member(action: LauncherAction, membership: Membership) -> None:
    """Carry out an action that concerns the peers or the checkpoint folder."""
    peers, storage = membership.peers, membership.storage
    match action:
        case AskForFence(attempt=attempt, restore_path=path):
            storage.ask_fence(attempt, path)
        case WatchCheckpoints(share=share):
            storage.watch(share)
        case FindCheckpoints(empty_through=through, revision=revision, share=share):
            storage.ask_found(through, revision, share)
        case KeepLease(lease=None):
            peers.keep(None)
        case KeepLease(lease=kept) if kept is not None:
            peers.keep(Lease(kept.attempt, kept.peers, kept.lease_s, kept.neighbours))
        case _:
            raise AssertionError(f"no action of a member: {action}")
