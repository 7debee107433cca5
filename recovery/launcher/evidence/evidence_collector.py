"""Saves evidence from a hung job's ranks before they are stopped: once, and within a deadline.

One thread collects while the launcher's loop continues; the loop waits for it until the order's
deadline at most. A stuck thread (its disk doesn't answer) is left behind, and nothing more is
collected until it returns: there is never a second thread.
"""

import contextlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from detectors.formats.plain_pickle import BYTES_MAX
from detectors.formats.python_stacks import main_frames, parse_stacks
from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.flight_dump import FlightDump
from detectors.hang.standings import trim_dump
from rankmend.clock import Clock
from rankmend.errors import RankmendError, SourceError, StorageError
from rankmend.files import replace_file
from recovery.launcher.evidence.rank_evidence import (
    RecorderFiles,
    ask_for_dump,
    ask_for_stacks,
    describe_rank,
    read_stacks,
)
from recovery.launcher.evidence.surroundings import read_agent_findings, read_kernel_log
from recovery.launcher.processes.process_tree import ProcessRef, read_processes
from recovery.messages.exchange import Collected, RankEvidence

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 16 << 20  # a dump of 2,000 entries with stacks takes 2 to 4 MB
TOTAL_BYTES_MAX: Final = 64 << 20  # per attempt: 8 ranks with 8 MB each
INCIDENTS_MAX: Final = 20  # per job; people look at a job before it fails this often
ALL_BYTES_MAX: Final = 512 << 20  # per job

NOTES_MAX: Final = 32
REPORTS_WITH_RANKS: Final = 3  # several, so that one may be lost
# a message may have 8 MiB; a trimmed dump takes 12 kB and its groups
TOLD_BYTES_MAX: Final = 2 << 20
# Shares of the allowed time: reading the state of every thread may take the first, and the last is
# reserved for writing the answers.
_READING_SHARE: Final = 0.4
_WRITING_SHARE: Final = 0.2
_STACKS_S_MAX: Final = 1.0  # faulthandler answers from C in milliseconds, or not at all
_POLL_S: Final = 0.02
_QUIET_POLLS: Final = 5  # an answer that hasn't grown for 0.1 s is complete
_INCIDENT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class EvidenceFolder:
    """The folder for an incident's evidence: bounded, rotated, and never an obstacle to recovery.

    It accepts files until it is full. A file that can't be written becomes a note, never an error.
    """

    def __init__(self, incidents: Path, incident_id: str, attempt: int) -> None:
        self._incidents = incidents
        self.path = incidents / incident_id / f"attempt-{attempt}"
        self.size_bytes = 0
        self.files = 0
        self.notes: list[str] = []
        self._is_broken = False

    def open(self) -> None:
        """Make the folder and the room for it."""
        try:
            _rotate(self._incidents, keep=self.path.parent)
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._is_broken = True
            self.notes.append(f"nothing can be written to {self.path}: {error.strerror}")

    def write(self, name: str, body: bytes) -> None:
        if self._is_broken:
            return
        if len(body) > FILE_BYTES_MAX or self.size_bytes + len(body) > TOTAL_BYTES_MAX:
            self.notes.append(
                f"{name} of {len(body)} bytes left out: the folder would exceed its limit"
            )
            return
        path = self.path / name
        try:
            replace_file(path, body, StorageError, durable=False)
        except StorageError as error:
            self._is_broken = True  # full or gone: the next file would fail, too
            self.notes.append(str(error))
            return
        self.size_bytes += len(body)
        self.files += 1


def _rotate(incidents: Path, keep: Path) -> None:
    """Remove the oldest incidents' folders to make room for one more."""
    if not incidents.is_dir():
        return
    folders = [path for path in incidents.iterdir() if path.is_dir() and path != keep]
    folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    sizes = [_size(path) for path in folders]
    left = ALL_BYTES_MAX - TOTAL_BYTES_MAX
    for number, (path, size) in enumerate(zip(folders, sizes, strict=True), start=1):
        left -= size
        if left < 0 or number >= INCIDENTS_MAX:
            shutil.rmtree(path, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


@dataclass(frozen=True, slots=True)
class RankSource:
    """What is needed to collect from one rank."""

    rank: int
    pid: int
    stacks: Path | None
    recorder: RecorderFiles | None
    training: ProcessRef | None = None  # its own process, where it reports a pid of its container
    has_error: bool = False  # it ended with an error that was read


class EvidenceCollector:
    """For the launcher's thread; `wake` is called from another one."""

    def __init__(
        self,
        incidents: Path,
        clock: Clock,
        last_lines: Callable[[int], tuple[tuple[str, ...], tuple[str, ...]]],
    ) -> None:
        self._incidents = incidents
        self._clock = clock
        self._last_lines = last_lines
        self._thread: threading.Thread | None = None
        self._key: tuple[str, int] | None = None
        self._until_s = 0.0
        self._finished: Collected | None = None
        self._is_saved = False  # the ranks may be stopped
        self._reports_left = 0  # reports that still carry the ranks' answers

    def start(
        self,
        incident_id: str,
        attempt: int,
        ranks: Sequence[RankSource],
        within_s: float,
        wake: Callable[[], None],
    ) -> None:
        """Start collecting for this incident, unless that was done before; take at most ``within_s``.

        0: the ranks are dying already, so only what they left is saved.
        """
        if self._key == (incident_id, attempt):
            return
        self._key = (incident_id, attempt)
        self._until_s = self._clock.now_s() + within_s
        if not _INCIDENT_ID.fullmatch(incident_id):
            log.warning("no evidence is collected: incident %.80r is not a name", incident_id)
            return
        if self._thread is not None and self._thread.is_alive():
            log.warning("no evidence is collected: an earlier collection is still stuck")
            return
        self._finished, self._is_saved = None, False
        self._reports_left = REPORTS_WITH_RANKS
        collection = _Collection(self, incident_id, attempt, ranks, within_s)
        self._thread = threading.Thread(
            target=self._run, args=(collection, wake), name="evidence", daemon=True
        )
        self._thread.start()

    def _run(self, collection: "_Collection", wake: Callable[[], None]) -> None:
        try:
            collected = collection.run()
            self._is_saved = True  # nobody waits for their output: it only goes into the report
            wake()
            output_says = collection.judge_output()
            self._finished = replace(collected, output_says=output_says)
        except Exception:
            log.exception("the evidence could not be collected")
        wake()

    def wait_s(self, now_s: float) -> float:
        """Return how long to keep the ranks alive; 0 once everything is saved or the time is over."""
        is_running = self._thread is not None and self._thread.is_alive()
        return max(0.0, self._until_s - now_s) if is_running and not self._is_saved else 0.0

    def take_report(self) -> Collected | None:
        """Return the newest collection's part of the next report.

        Only the first reports carry the ranks' answers, which may be long.
        """
        collected = self._finished
        if collected is None:
            return None
        if self._reports_left > 0:
            self._reports_left -= 1
            return collected
        return replace(collected, ranks=())

    def close(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def lines_of(self, rank: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self._last_lines(rank)

    @property
    def clock(self) -> Clock:
        return self._clock

    def make_folder(self, incident_id: str, attempt: int) -> EvidenceFolder:
        return EvidenceFolder(self._incidents, incident_id, attempt)


class _Collection:
    """One run of the thread."""

    def __init__(
        self,
        owner: EvidenceCollector,
        incident_id: str,
        attempt: int,
        ranks: Sequence[RankSource],
        within_s: float,
    ) -> None:
        self._owner = owner
        self._incident_id = incident_id
        self._attempt = attempt
        self._ranks = ranks
        self._within_s = within_s
        self._started_s = owner.clock.now_s()
        self._folder = owner.make_folder(incident_id, attempt)
        # Opened here because the launcher removes the files with the attempt.
        self._stacks = _open_all({rank.rank: rank.stacks for rank in ranks} if within_s else {})
        dumps = {rank.rank: rank.recorder.dump if rank.recorder else None for rank in ranks}
        self._dumps = {} if within_s else _open_all(dumps)
        self._notes: list[str] = []
        self._lines: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._stop = threading.Event()  # never set: used for pauses without a clock

    def run(self) -> Collected:
        try:
            return self._run()
        finally:
            for descriptor in (*self._stacks.values(), *self._dumps.values()):
                os.close(descriptor)

    def _run(self) -> Collected:
        # Read first: the stamp distinguishes an old dump of the same name from the answer.
        stamps = {rank.rank: _stamp(rank.recorder) for rank in self._ranks}
        states = self._describe_processes() if self._within_s else {}
        requested, dumping = self._request_dumps() if self._within_s else (set(), set())
        lines = {rank.rank: self._owner.lines_of(rank.rank) for rank in self._ranks}
        self._lines = lines
        kernel, findings = self._read_surroundings()
        self._wait_for_answers(requested, dumping, stamps)
        return self._write_down(states, lines, kernel, findings, stamps)

    # In order.

    def _describe_processes(self) -> dict[int, str]:
        try:
            processes = read_processes()
            return {
                rank.rank: describe_rank(rank.pid, processes, lambda: self._is_past(_READING_SHARE))
                for rank in self._ranks
                if rank.pid
            }
        except (OSError, SourceError) as error:
            self._note(f"the processes can't be read: {error}")
            return {}

    def _request_dumps(self) -> tuple[set[int], set[int]]:
        requested, dumping = set(), set()
        for rank in self._ranks:
            if rank.recorder is not None and ask_for_dump(rank.recorder):
                dumping.add(rank.rank)
            if rank.stacks is None or rank.rank not in self._stacks:
                continue
            reason = ask_for_stacks(rank.stacks, rank.training)
            if reason is None:
                requested.add(rank.rank)
            else:
                self._note(f"rank {rank.rank}: no Python stacks: {reason}")
        if not dumping:
            self._note("no rank has NCCL's pipe open, so no flight-recorder dump was requested")
        return requested, dumping

    def _read_surroundings(self) -> tuple[str, bytes]:
        kernel, findings = "", b""
        try:
            kernel = read_kernel_log(lambda: self._is_past(1 - _WRITING_SHARE))
        except SourceError as error:
            self._note(f"no kernel log: {error}")
        if self._within_s:
            try:
                findings = read_agent_findings()
            except SourceError as error:
                self._note(str(error))
        return kernel, findings

    def _wait_for_answers(
        self, requested: set[int], dumping: set[int], stamps: dict[int, tuple[int, ...]]
    ) -> None:
        """Wait until every rank has answered in full, or the time is over."""
        waiting = {item.rank: item for item in self._ranks if item.rank in requested | dumping}
        seen: dict[int, object] = {}
        quiet: dict[int, int] = {}
        asked_at_s = self._owner.clock.now_s()
        while waiting and not self._is_past(1 - _WRITING_SHARE):
            is_slow = self._owner.clock.now_s() - asked_at_s >= _STACKS_S_MAX
            for rank, item in list(waiting.items()):
                stacks = len(read_stacks(self._stacks[rank])) if rank in requested else 0
                dump = _stamp(item.recorder) if rank in dumping else ()
                has_stacks = rank not in requested or is_slow or stacks > 0
                has_dump = rank not in dumping or dump not in ((), stamps[rank])
                state = (stacks, dump)
                is_quiet = has_stacks and has_dump and seen.get(rank) == state
                quiet[rank] = quiet.get(rank, 0) + 1 if is_quiet else 0
                seen[rank] = state
                if quiet[rank] >= _QUIET_POLLS:
                    del waiting[rank]
            self._stop.wait(_POLL_S)
        for rank in sorted(set(waiting) & dumping):
            self._note(f"rank {rank}: no flight-recorder dump came in time")

    def _write_down(
        self,
        states: dict[int, str],
        lines: dict[int, tuple[tuple[str, ...], tuple[str, ...]]],
        kernel: str,
        findings: bytes,
        stamps: dict[int, tuple[int, ...]],
    ) -> Collected:
        folder = self._folder
        folder.open()
        reported = []
        for item in self._ranks:
            rank = item.rank
            if text := states.get(rank):
                folder.write(f"processes-rank-{rank}.txt", text.encode())
            out, err = lines[rank]
            for name, stream in (("stdout", out), ("stderr", err)):
                if stream:
                    folder.write(f"{name}-rank-{rank}.txt", "\n".join((*stream, "")).encode())
            stacks = read_stacks(self._stacks[rank]) if rank in self._stacks else b""
            if stacks:
                folder.write(f"stacks-rank-{rank}.txt", stacks)
            is_new = (
                _stamp(item.recorder) != stamps[rank] if self._within_s else rank in self._dumps
            )
            dump = self._take_dump(item) if is_new else None
            frames = main_frames(parse_stacks(stacks.decode("utf-8", "replace")))
            if frames or dump is not None:
                reported.append(RankEvidence(rank, frames, dump))
        if kernel:
            folder.write("kernel.log", kernel.encode())
        if findings:
            folder.write("agent-findings.json", findings)
        notes = (*self._notes, *folder.notes)
        if notes:
            folder.write("notes.txt", "\n".join((*notes, "")).encode())
        return Collected(
            incident_id=self._incident_id,
            attempt=self._attempt,
            folder=str(folder.path),
            files=folder.files,
            size_bytes=folder.size_bytes,
            took_s=self._owner.clock.now_s() - self._started_s,
            notes=notes[:NOTES_MAX],
            ranks=self._bounded(reported),
        )

    def judge_output(self) -> str:
        """Return the error in the ranks' output, where no rank's own error is known."""
        lines = self._lines
        if not lines or any(rank.has_error for rank in self._ranks):
            return ""
        from detectors.job_log.verdict import in_words  # noqa: PLC0415
        from recovery.launcher.evidence.output_verdict import (  # noqa: PLC0415 - its patterns cost 30 ms, and most launchers need none
            judge_output,
        )

        try:
            verdict = judge_output(lines, self._folder.path.parents[2], self._attempt)
        except Exception:  # a verdict helps people, but the evidence is saved without it
            log.exception("the ranks' output can't be judged")
            return ""
        return in_words(verdict) if verdict is not None else ""

    def _bounded(self, reported: list[RankEvidence]) -> tuple[RankEvidence, ...]:
        if len(msgspec.json.encode(reported)) <= TOLD_BYTES_MAX:
            return tuple(reported)
        reported = [
            replace(evidence, dump=evidence.dump.without_history()) if evidence.dump else evidence
            for evidence in reported
        ]
        if len(msgspec.json.encode(reported)) <= TOLD_BYTES_MAX:
            return tuple(reported)
        log.warning("stacks and dumps are too long for a report; they are in %s", self._folder.path)
        return ()

    def _take_dump(self, item: RankSource) -> FlightDump | None:
        """Save a rank's whole dump, and return the part that a verdict needs."""
        if item.recorder is None:
            return None
        source = self._dumps.pop(item.rank, None) or item.recorder.dump
        try:
            with open(source, "rb") as file:  # noqa: PTH123 - a descriptor or a path
                body = file.read(BYTES_MAX + 1)
        except OSError:
            return None
        self._folder.write(f"flight-rank-{item.rank}.pkl", body)
        try:
            return trim_dump(parse_dump(body))
        except RankmendError as error:
            self._note(f"rank {item.rank}: its flight-recorder dump can't be read: {error}")
            return None

    def _is_past(self, share: float) -> bool:
        if not self._within_s:
            return False
        return self._owner.clock.now_s() - self._started_s >= share * self._within_s

    def _note(self, text: str) -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes.append(text)


def _open_all(paths: Mapping[int, Path | None]) -> dict[int, int]:
    opened = {}
    for rank, path in paths.items():
        if path is not None:
            with contextlib.suppress(OSError):
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
                opened[rank] = os.open(path, flags)
    return opened


def _stamp(files: RecorderFiles | None) -> tuple[int, ...]:
    """Return a stamp that changes with every dump into a rank's file; empty if there is no file."""
    if files is None:
        return ()
    try:
        found = files.dump.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns)
