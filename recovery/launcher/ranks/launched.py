"""The launcher's view of an attempt's ranks, and what it reports of each.

It comes from progress files, process states, and the files that ranks leave behind when they end.
"""

import contextlib
import logging
import math
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from detectors.failed.error_classes import read_known_end
from detectors.failed.error_text import (
    RECORD_CHARS_MAX,
    ErrorText,
    parse_elastic_error,
    parse_error,
    parse_record,
    read_beside,
    read_exit_text,
    read_printed,
)
from rankmend.errors import SourceError, TornReadError
from rankmend.hook import layout
from rankmend.hook.lease import (
    ENDED_WORD,
    ENDS_WORD,
    NAMESPACE_WORD,
    PUBLISHES_WORD,
    read_namespace,
)
from rankmend.progress import ProgressReader, RankNumbers, RankProgress, StepRecord
from recovery.checkpoints.snapshots.listing import kept_of
from recovery.launcher.decision.launcher_state import AttemptFacts
from recovery.launcher.evidence.evidence_collector import RankSource
from recovery.launcher.evidence.rank_evidence import RecorderFiles, is_open_in, read_head
from recovery.launcher.guardian.packets import ProgressHolder
from recovery.launcher.membership.node_membership import RankDeadline, boot_time_s, prolong
from recovery.launcher.processes.process_tree import (
    LOOK_S,
    ProcessRef,
    descendants,
    find_outer,
    read_processes,
    read_state,
    send_signal,
)
from recovery.launcher.ranks.environment import RankFiles
from recovery.launcher.ranks.launch_plan import StatedWork
from recovery.launcher.ranks.waiting_processes import AFRESH
from recovery.messages.exchange import (
    BadNumber,
    NotFinite,
    RankError,
    RankExit,
    RankReport,
    RankStart,
    RankWork,
    StepNumbers,
    StepTiming,
)

log = logging.getLogger(__name__)

_STOPPED: Final = "T"  # by job control, proc_pid_stat(5)
_RECORDS_MAX: Final = 128  # new step records per rank and report: steps of 4 ms at 0.5 s
_ERROR_FILE_BYTES_MAX: Final = 65536


# Writes into a rank's progress file until when it may run, for the hook to keep (`rankmend.hook.lease`).
# The launcher writes it, not the guardian: a guardian that a debugger holds ends no rank whose launcher reaches somebody.


_NS_A_S: Final = 1_000_000_000


class RankLease:
    """The lease in one progress file."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._map = mmap.mmap(descriptor, layout.FILE_SIZE)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")
        self._words[NAMESPACE_WORD] = read_namespace()

    def set(self, deadline: RankDeadline) -> None:
        """Have the rank publish and step until these times."""
        self._words[PUBLISHES_WORD] = _word(deadline.until_s)
        self._words[ENDS_WORD] = 0 if deadline.ends_s is None else _word(deadline.ends_s)

    @property
    def has_ended_rank(self) -> bool:
        """Return whether the rank has ended itself by this lease."""
        return self._words[ENDED_WORD] != 0

    def close(self) -> None:
        self._words.release()
        self._map.close()


def _word(at_s: float) -> int:
    """Return a time as a word; never 0, which says that there is no lease."""
    return max(1, int(max(at_s, 0.0) * _NS_A_S))


def numbers_after(reported: RankNumbers | None, sent: int) -> tuple[StepNumbers, ...]:
    """Return the numbers of the records after the last one sent."""
    if reported is None:
        return ()
    return tuple(
        StepNumbers(record.count, record.step, _on_wire(record.loss), _on_wire(record.grad_norm))
        for record in reported.records
        if record.count > sent
    )


def first_bad_loss(reported: RankNumbers | None) -> BadNumber | None:
    if reported is None or reported.first_bad is None:
        return None
    return _bad(reported.first_bad.loss_step, reported.first_bad.loss)


def first_bad_grad_norm(reported: RankNumbers | None) -> BadNumber | None:
    if reported is None or reported.first_bad is None:
        return None
    return _bad(reported.first_bad.grad_norm_step, reported.first_bad.grad_norm)


def _bad(step: int | None, value: float) -> BadNumber | None:
    # The file is the user's: a finite value there is no bad one.
    reported = _on_wire(value)
    return (
        BadNumber(step, reported) if step is not None and isinstance(reported, NotFinite) else None
    )


def _on_wire(value: float | None) -> float | NotFinite | None:
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return NotFinite.NAN
    return NotFinite.INFINITE if value > 0 else NotFinite.MINUS_INFINITE


class LaunchFault(NamedTuple):
    """The reason why the ranks of the newest order could not start."""

    name: str  # an errno name as the system spells it, "store" or "refused"
    text: str


@dataclass(slots=True)
class LaunchedRank:
    """One rank of the running attempt."""

    rank: int
    local_rank: int
    files: RankFiles
    reader: ProgressReader
    pid: int = 0
    start_ticks: int = 0
    is_exiting: bool = False  # dying, but the kernel has not released it yet
    signalled: bool = False  # we have sent it a signal
    exited_at_s: float = 0.0
    exit: RankExit | None = None
    records_sent: int = 0
    last_sent: StepRecord | None = None
    numbers_sent: int = 0
    progress: RankProgress | None = None
    progress_error: str | None = None
    recorder: RecorderFiles | None = None
    start: RankStart = AFRESH
    is_contained: bool = False  # it runs behind the process that we started
    is_program: bool = False  # that process is not Python, and may run several Pythons
    is_past_training: bool = (
        False  # the process that made steps has ended, and what started it runs on
    )
    step_work: StatedWork | None = None  # stated for the whole job, where the script reports none
    training: ProcessRef | None = None  # its own process, once it has reported which it is
    _lease: RankLease | None = None  # None: none is kept, or the file is gone
    _looked_at_s: float = -math.inf

    def report(self, read_clock: Callable[[], float]) -> RankReport:
        """Return the current report of this rank."""
        if not self.is_past_training:  # what is in the file is of one process alone
            self._read_progress(read_clock())
            self.find_training(read_clock())
            self.is_past_training = self._has_training_ended()
        now_s = read_clock()  # after the read: newer entries of the rank are not from the future
        reported = self.progress
        start = self.start.bounded() if self.pid else None
        if reported is None:
            return RankReport(
                rank=self.rank,
                local_rank=self.local_rank,
                pid=self.shown_pid,
                process_state=self._process_state(),
                progress_error=self.progress_error,
                exit=self._aged_exit(now_s),
                start=start,
            )
        timings = tuple(self._take_timings(reported, now_s))
        return RankReport(
            rank=self.rank,
            local_rank=self.local_rank,
            pid=self.shown_pid,
            process_state=self._process_state(),
            attached_age_s=_age(reported.attached_at_s, now_s),
            resumed_age_s=_age(reported.resumed_at_s, now_s),
            first_section_age_s=_age(reported.first_section_at_s, now_s),
            rendezvous_began_age_s=_age(reported.rendezvous_began_at_s, now_s),
            rendezvous_ended_age_s=_age(reported.rendezvous_ended_at_s, now_s),
            step=reported.last.step if reported.last else None,
            step_age_s=_age(reported.last.ended_at_s, now_s) if reported.last else None,
            steps_done=reported.step_count,
            is_relative=reported.is_relative,
            section=reported.section.name.lower(),
            section_age_s=_age(reported.section_since_s, now_s),
            sections_entered=reported.sections_entered,
            collectives_entered=reported.collectives_entered,
            collectives_completed=reported.collectives_completed,
            collective_timeout_s=reported.collective_timeout_s,
            has_pairs=reported.has_pairs,
            timings=timings,
            progress_error=self.progress_error,
            exit=self._aged_exit(now_s),
            start=start,
            snapshots=kept_of(reported.snapshots),
            numbers=self._take_numbers(reported.numbers),
            first_bad_loss=first_bad_loss(reported.numbers),
            first_bad_grad_norm=first_bad_grad_norm(reported.numbers),
            work=self._work(reported),
            hidden=reported.hidden,
            place=reported.place,
            nccl=reported.nccl,
            is_past_training=self.is_past_training,
            script_end=reported.script_end,
        )

    def _work(self, reported: RankProgress) -> RankWork | None:
        work, stated = reported.work, self.step_work
        if work is not None:
            return RankWork(work.flops, work.tokens, work.samples, work.data_type, work.device)
        if stated is None or not reported.step_count:
            return None
        return stated.of_rank(reported.step_count, reported.identity.world_size)

    def lease(self, deadline: RankDeadline) -> None:
        """Have the rank end itself where its launcher and guardian don't."""
        try:
            if self._lease is None:
                self._lease = RankLease(self.files.progress)
            self._lease.set(deadline)
        except (
            OSError,
            ValueError,
        ) as error:  # somebody has removed it: the guardian alone keeps the lease
            log.debug("no lease in the progress file", extra={"rank": self.rank, "why": str(error)})

    def close(self) -> None:
        self.reader.close()
        if self._lease is not None:
            self._lease.close()

    def source(self) -> RankSource:
        """Return what is needed to collect evidence from this rank."""
        has_error = self.exit is not None and self.exit.error is not None
        return RankSource(
            self.rank, self.shown_pid, self.files.stacks, self.recorder, self.training, has_error
        )

    @property
    def shown_pid(self) -> int:
        """Return the training process, as this host knows it; until it is known, the process that we started."""
        return self.training.pid if self.training is not None else self.pid

    def find_training(self, now_s: float) -> None:
        """Look for the training process of a rank that runs behind another program."""
        reported = self.progress
        if not self.is_contained or reported is None or not reported.pid or self.exit is not None:
            return
        inner = ProcessRef(reported.pid, reported.start_ticks)
        known = self.training
        if known is not None and known.start_ticks == inner.start_ticks:
            return
        if now_s - self._looked_at_s < LOOK_S:
            return
        self._looked_at_s = now_s
        self.training = find_outer(inner, self.pid, self._has_stacks_open)

    def find_holder(self, now_s: float) -> ProgressHolder | None:
        """Return the living process that holds the progress file, as this host knows it."""
        self._read_progress(now_s)
        reported = self.progress
        if reported is None or not reported.pid or self.exit is not None or not self.pid:
            return None
        inner = ProcessRef(reported.pid, reported.start_ticks)
        if inner == ProcessRef(self.pid, self.start_ticks) and not self.is_contained:
            return ProgressHolder(self.rank, inner.pid, inner.start_ticks)
        outer = find_outer(inner, self.pid, self._has_stacks_open)
        if outer is None:
            return None
        return ProgressHolder(self.rank, outer.pid, outer.start_ticks)

    def continue_stopped(self, now_s: float) -> list[int]:
        """Send SIGCONT to each process of the rank that a signal has stopped, and return the pids.

        Never to a process that a debugger holds (t). Helpers count, too: a stop of the whole group has stopped them with the rank.
        """
        if not self.pid or self.exit is not None:
            return []
        holder = self.find_holder(now_s)
        try:
            processes = read_processes()
        except (OSError, SourceError):
            processes = {}
        leader = processes.get(self.pid)
        if leader is None or leader.start_ticks != self.start_ticks:
            return []
        outside = [] if holder is None else [processes.get(holder.pid)]
        found = {state.pid: state for state in outside if state is not None}
        found |= {state.pid: state for state in (leader, *descendants(self.pid, processes))}
        stopped = [state for state in found.values() if state.letter == _STOPPED]
        return [
            state.pid
            for state in stopped
            if send_signal(ProcessRef(state.pid, state.start_ticks), signal.SIGCONT)
        ]

    def _has_training_ended(self) -> bool:
        """Return whether a process that made steps is gone, and the program that had started it may run on to something else.

        A container ends with the Python that is its command: a process that doesn't is no program that runs on.
        """
        reported = self.progress
        if (
            reported is None
            or not reported.pid
            or not (reported.step_count or reported.sections_entered)
            or self.exit is not None
        ):
            return False
        if not self.is_contained:
            training = ProcessRef(reported.pid, reported.start_ticks)
        elif self.is_program and self.training is not None:
            training = self.training
        else:
            return False
        if training.pid == self.pid:
            return False
        state = read_state(training.pid)
        return state is None or state.start_ticks != training.start_ticks or state.is_gone

    def _has_stacks_open(self, pid: int) -> bool:
        stacks = self.files.stacks
        head = None if stacks is None else read_head(stacks)
        return head is not None and stacks is not None and is_open_in(pid, head[1], stacks)

    def _take_numbers(self, reported: RankNumbers | None) -> tuple[StepNumbers, ...]:
        """Return the numbers that no report has carried yet."""
        new = numbers_after(reported, self.numbers_sent)
        if reported is not None:
            self.numbers_sent = max(self.numbers_sent, reported.count)
        return new

    def _take_timings(self, reported: RankProgress, now_s: float) -> Iterator[StepTiming]:
        """Yield the steps that no report has carried yet."""
        for record in reported.records:
            if record.count <= self.records_sent:
                continue
            before = self.last_sent
            is_next = before is not None and before.count + 1 == record.count
            yield StepTiming(
                number=record.count,
                step=record.step,
                age_s=max(0.0, now_s - record.ended_at_s),
                compute_s=record.compute_s,
                communication_s=record.communication_s,
                io_s=record.io_s,
                checkpoint_s=record.checkpoint_s,
                waited_s=record.waited_s,
                duration_s=record.ended_at_s - before.ended_at_s if before and is_next else None,
            )
            self.last_sent = record
        self.records_sent = reported.step_count

    def _read_progress(self, now_s: float) -> None:
        try:
            self.progress = self.reader.read(
                now_s, _RECORDS_MAX, after=self.records_sent, numbers_after=self.numbers_sent
            )
            self.progress_error = None
        except TornReadError:
            pass  # the rank is writing; the previous values remain valid
        except SourceError as error:
            if self.progress_error is None:
                log.warning("progress file is broken", extra={"rank": self.rank, "why": str(error)})
            self.progress_error = str(error)

    def _process_state(self) -> str:
        """Return the state letter of the training process: the process that attached, else the one we started."""
        if self.exit is not None or not self.pid:
            return ""
        if self.is_exiting:
            return "X"
        if self.training is not None and not self.is_past_training:
            state = read_state(self.training.pid)
            is_it = state is not None and state.start_ticks == self.training.start_ticks
            return state.letter if state is not None and is_it else "Z"  # what is before it lives
        reported = self.progress
        if reported is not None and reported.pid not in (0, self.pid):
            state = read_state(reported.pid)
            if state is not None and state.start_ticks == reported.start_ticks:
                return state.letter
        state = read_state(self.pid)
        return state.letter if state is not None else ""

    @property
    def is_unreaped(self) -> bool:
        """Return whether the rank is dead although the guardian has not reported its end."""
        if self.exit is not None or not self.pid:
            return False
        state = read_state(self.pid)
        return state is None or state.start_ticks != self.start_ticks or state.is_gone

    def read_error(self, err: tuple[str, ...]) -> ErrorText | None:
        """Return the rank's own error: from the hook's record, its elastic error file or its stderr."""
        record = parse_record(_read_file(self.files.raised, RECORD_CHARS_MAX), self.own_pids())
        if record is not None:
            return read_printed(record, err)
        return parse_elastic_error(_read_file(self.files.error)) or parse_error(err)

    def own_pids(self) -> frozenset[int]:
        """Return the processes whose uncaught exception is the rank's error, as they know themselves.

        The process that we started, and the one that trains: a tool that a script runs may fail and be no error.
        """
        reported = self.progress
        return frozenset({self.pid, reported.pid if reported is not None else 0} - {0})

    def note_exit(
        self,
        code: int | None,
        signum: int | None,
        lines: tuple[tuple[str, ...], tuple[str, ...]],
        now_s: float,
        *,
        oom_killed: bool,
        crash_library: str = "",
    ) -> None:
        """Record how the rank ended. ``lines``: its last lines on stdout and stderr."""
        out, err = lines
        is_failure = code != 0
        error = self.read_error(err) if is_failure else None
        if error is None and is_failure and not err:
            error = parse_error(out)
        last_lines = (err or out)[-20:] if is_failure else ()
        is_by_text = code == 1 and error is None
        self.exited_at_s = now_s
        has_ended_itself = self._lease is not None and self._lease.has_ended_rank
        self.exit = RankExit(
            age_s=0.0,
            exit_code=code,
            signal=signum,
            by_launcher=self.signalled or has_ended_itself,
            oom_killed=oom_killed,
            error=RankError(error.type_name, error.message, error.traceback) if error else None,
            last_lines=last_lines,
            words=read_known_end(
                error,
                last_lines,
                beside=read_beside(err),
                exit_text=read_exit_text(err) if is_by_text else "",
            )
            if is_failure
            else None,
            crash_library=crash_library,
        )

    def _aged_exit(self, now_s: float) -> RankExit | None:
        return self.exit and replace(self.exit, age_s=now_s - self.exited_at_s)


def _read_file(path: Path, size_max: int = _ERROR_FILE_BYTES_MAX) -> str:
    """Return the start of a file that a rank may have left; nothing where there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(size_max).decode("utf-8", "replace")
    return ""


@dataclass(slots=True)
class LaunchedAttempt:
    number: int
    started_at_s: float
    ranks: dict[int, LaunchedRank] = field(default_factory=dict)
    deadline: RankDeadline | None = None

    def lease(self, until_s: float, kill_bound_s: float) -> bool:
        """Write the lease into the ranks' progress files, and return whether it may be prolonged."""
        deadline = prolong(self.deadline, until_s, kill_bound_s, boot_time_s())
        if deadline is None:
            return False
        self.deadline = deadline
        for rank in self.ranks.values():
            rank.lease(deadline)
        return True

    @property
    def has_ended(self) -> bool:
        return all(rank.exit is not None for rank in self.ranks.values())

    @property
    def has_ended_well(self) -> bool:
        return all(rank.exit and rank.exit.exit_code == 0 for rank in self.ranks.values())

    def has_stepped(self, count: int) -> bool:
        """Return whether every living rank is known to have made this many steps."""
        alive = [rank for rank in self.ranks.values() if rank.exit is None]
        return all(rank.progress and rank.progress.step_count >= count for rank in alive)

    def facts(self, *, has_leftovers: bool = False) -> AttemptFacts:
        """Return the facts that a decision needs. ``has_leftovers``: a child outlives all ranks."""
        return AttemptFacts(
            number=self.number,
            started_at_s=self.started_at_s,
            rank_count=len(self.ranks),
            is_started=all(rank.pid and rank.exit is None for rank in self.ranks.values()),
            has_ended=self.has_ended,
            is_stepping=self.has_stepped(2),
            has_leftovers=has_leftovers,
        )

    def holders(self, now_s: float) -> tuple[ProgressHolder, ...]:
        """Return who holds the ranks' progress files, as far as that is known."""
        found = [rank.find_holder(now_s) for rank in self.ranks.values()]
        return tuple(holder for holder in found if holder is not None)

    def mark_signalled(self) -> None:
        """Record that this launcher is ending the living ranks."""
        for rank in self.ranks.values():
            rank.signalled = rank.signalled or rank.exit is None

    def close(self) -> None:
        for rank in self.ranks.values():
            rank.close()


def _age(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else max(0.0, now_s - at_s)
