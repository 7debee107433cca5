"""Collects evidence from the ranks of a watched job that the controller has found hung.

The controller's answer to a report names the jobs (`rankmend.watched_report.ReportTaken`). One thread reads, so that a path on a
file server that hangs holds up no report; while it is stuck nothing more is collected. Whatever lies in the job's folder comes
from its user: each file counts only if that user owns it, is bounded, and nothing is unpickled (`detectors.formats`).

Sources: <procfs>/<pid>/{stat,wchan,syscall,stack} of the main thread, where this process may read them; the pipes of
         `rankmend.hook.watched_stacks`, the dump of PyTorch's flight recorder and NCCL's RAS, where the job's owner wants that.
"""

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from agent.ranks.table import RankSample
from agent.ranks.watched import WatchedJob
from agent.watch.job_logs import JobLogs
from agent.watch.nccl_ras import ask_ras
from detectors.formats.nccl_ras import ras_evidence, read_ras
from detectors.formats.plain_pickle import BYTES_MAX
from detectors.formats.python_stacks import main_frames, parse_stacks
from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.standings import trim_dump
from rankmend.errors import RankmendError, SourceError
from rankmend.hook import layout
from rankmend.hook.watched_layout import ASK_SUFFIX, RECORDER_SUFFIX, STACKS_SUFFIX
from rankmend.watched_report import (
    DUMP_BYTES_MAX,
    EVIDENCE_BYTES_MAX,
    KERNEL_LINES_MAX,
    LOG_LINES_MAX,
    NOTES_MAX,
    RAS_LINES_MAX,
    ReportedEvidence,
    ReportedFrame,
)

log = logging.getLogger(__name__)

ANSWER_S: Final = 1.0  # faulthandler answers from C in milliseconds, or not at all
QUIET_S: Final = 0.1  # an answer that has not grown for so long is complete
DUMP_S: Final = 3.0  # PyTorch looks at its pipe once a second
AGAIN_S: Final = 60.0  # between two collections of one job
_POLL_S: Final = 0.02
_ANSWER_BYTES_MAX: Final = 128 << 10
_FILE_BYTES_MAX: Final = 4096
_RECORDER_BYTES_MAX: Final = 16_384  # two paths
_TEXT_MAX: Final = 256
_STACK_LINES_MAX: Final = 4
_DEAF: Final = frozenset("TtDZXx")  # a signal reaches none of these now

RankKey = tuple[str, int, int]  # job, rank, pid as the rank tells it


@dataclass(frozen=True, slots=True)
class AskedRank:
    """One rank to collect from."""

    key: RankKey
    pid: int  # here
    uid: int
    progress: Path
    step_age_s: float | None


def files_of(sample: RankSample, path: str, now_s: float) -> AskedRank | None:
    """Return what there is to read of a rank; ``path``: of its progress file."""
    progress = sample.progress
    if progress is None or not progress.pid:
        return None
    last = progress.last
    key = (str(sample.identity.job_id), sample.identity.rank, progress.pid)
    try:
        uid = os.lstat(path).st_uid
    except OSError:
        return None
    pid = sample.pid if sample.pid > 0 else progress.pid
    return AskedRank(key, pid, uid, Path(path), now_s - last.ended_at_s if last else None)


class _Recorder(msgspec.Struct):
    """What a rank has written down of its flight recorder and of NCCL's RAS."""

    dump: str = ""
    pipe: str = ""
    ras_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class EvidenceGatherer:
    """For the sender's thread."""

    def __init__(
        self,
        procfs_root: Path,
        wait: Callable[[float], object] = time.sleep,
        logs: JobLogs | None = None,
    ) -> None:
        """``logs``: the log files that the site names; None: it names none."""
        self._procfs_root = procfs_root
        self._logs = logs
        self._wait = wait
        self._thread: threading.Thread | None = None
        self._asked_s: dict[str, float] = {}  # when a job was collected from
        self._found: dict[RankKey, ReportedEvidence] = {}

    def start(
        self, ranks: Sequence[AskedRank], now_s: float, jobs: Sequence[WatchedJob] = ()
    ) -> None:
        """Collect from these ranks, but for jobs that were collected from lately."""
        if self.is_busy:
            return
        self._asked_s = {job: at for job, at in self._asked_s.items() if now_s - at < AGAIN_S}
        due = [rank for rank in ranks if rank.key[0] not in self._asked_s]
        if not due:
            return
        self._asked_s.update((rank.key[0], now_s) for rank in due)
        self._thread = threading.Thread(
            target=self._run, args=(due, jobs), name="watched evidence", daemon=True
        )
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Return whether it collects now."""
        return self._thread is not None and self._thread.is_alive()

    def found(self) -> dict[RankKey, ReportedEvidence]:
        """Return what was collected and is not reported yet."""
        return {} if self.is_busy else dict(self._found)

    def forget(self, keys: Sequence[RankKey]) -> None:
        """Drop what the controller has."""
        for key in keys:
            self._found.pop(key, None)

    def _run(self, ranks: Sequence[AskedRank], jobs: Sequence[WatchedJob]) -> None:
        try:
            self._found = _bounded(
                {item.key: found for item, found in self._collect(ranks, jobs) if found is not None}
            )
        except Exception:
            log.exception("evidence of watched jobs not collected")

    def _collect(
        self, ranks: Sequence[AskedRank], jobs: Sequence[WatchedJob]
    ) -> "list[tuple[AskedRank, ReportedEvidence | None]]":
        collections = [_Collection(rank, self._procfs_root) for rank in ranks]
        for collection in collections:
            collection.ask()
        self._wait_for(collections)
        named = {str(job.job_id): job for job in jobs}
        for job_id, of_job in _by_job(collections).items():
            if self._logs is not None and job_id in named:
                rank = of_job[0].rank
                of_job[0].log = self._logs.judge(named[job_id], rank.uid)
            first = next((item for item in of_job if item.ras_port), None)
            if first is not None:
                first.ask_ras({item.rank.key[2] for item in of_job})
        return [(collection.rank, collection.result()) for collection in collections]

    def _wait_for(self, collections: "Sequence[_Collection]") -> None:
        began_s = time.monotonic()
        waiting = list(collections)
        while waiting:
            waited_s = time.monotonic() - began_s
            waiting = [collection for collection in waiting if collection.is_waiting(waited_s)]
            if waiting:
                self._wait(_POLL_S)


class _Collection:
    """What is collected from one rank."""

    def __init__(self, rank: AskedRank, procfs_root: Path) -> None:
        self.rank = rank
        self._procfs = procfs_root / str(rank.pid)
        self._notes: list[str] = []
        self._answer = b""
        self._grown_s = 0.0
        self._pipe: int | None = None  # of answers, as long as one is waited for
        self._kernel = self._kernel_lines()
        self._recorder = self._read_recorder()
        self._asked_dump = False
        self._ras: tuple[str, ...] = ()
        self.log: tuple[str, ...] = ()  # what the job's log files say

    @property
    def ras_port(self) -> int:
        """Return where NCCL's RAS may listen; 0: the job's owner does not want it asked."""
        return self._recorder.ras_port

    def ask_ras(self, pids: set[int]) -> None:
        """Ask for what stands out in the whole job; told of it: what these processes do, and who is missing."""
        try:
            answer = ask_ras(self.ras_port, self.rank.uid)
            found = () if answer is None else read_ras(answer)
        except SourceError as error:
            self._notes.append(str(error))
            return
        own = tuple(line for line in found if line.is_missing or line.pid in pids)
        self._ras = tuple(line.text[:_TEXT_MAX] for line in ras_evidence(own)[:RAS_LINES_MAX])

    def ask(self) -> None:
        """Ask the rank for its stacks and its flight recorder's dump, where it offers them."""
        if self._recorder.pipe:
            self._asked_dump = self._write_byte(Path(self._recorder.pipe)) is None
        try:
            self._pipe = self._open(self._beside(STACKS_SUFFIX), stat.S_ISFIFO)
        except OSError:  # it offers none
            return
        self._drain()  # an answer that nobody has fetched
        self._answer = b""
        reason = self._why_deaf() or self._write_byte(self._beside(ASK_SUFFIX))
        if reason:
            self._notes.append(f"no Python stacks: {reason}")
            self._close()

    def is_waiting(self, waited_s: float) -> bool:
        """Return whether something that was requested may still come."""
        if self._pipe is not None:
            if self._drain():
                self._grown_s = waited_s
            is_done = self._answer and waited_s - self._grown_s >= QUIET_S
            if is_done or waited_s >= ANSWER_S:
                self._close()
        waits_for_dump = self._asked_dump and waited_s < DUMP_S and self._open_dump() is None
        return self._pipe is not None or waits_for_dump

    def result(self) -> ReportedEvidence | None:
        frames = main_frames(parse_stacks(self._answer.decode("utf-8", "replace")))
        dump = self._read_dump()
        if not (frames or dump or self._kernel or self._ras or self._notes or self.log):
            return None
        return ReportedEvidence(
            frames=tuple(
                ReportedFrame(frame.file[-_TEXT_MAX:], frame.line, frame.function[:_TEXT_MAX])
                for frame in frames
            ),
            kernel=self._kernel,
            dump=dump,
            ras=self._ras,
            notes=tuple(note[:_TEXT_MAX] for note in self._notes[:NOTES_MAX]),
            log=tuple(line[:_TEXT_MAX] for line in self.log[:LOG_LINES_MAX]),
        )

    def _beside(self, suffix: str) -> Path:
        return self.rank.progress.with_name(self.rank.progress.name + suffix)

    def _open(self, path: Path, is_kind: Callable[[int], bool], flags: int = os.O_RDONLY) -> int:
        """Open a file that belongs to the job's user, or raise OSError.

        What the path leads to is looked at first: merely to open a device can have effects.
        """
        seen = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(seen)
            if not is_kind(found.st_mode) or found.st_uid != self.rank.uid:
                raise PermissionError(
                    f"{path} is not a file of that kind, owned by uid {self.rank.uid}"
                )
            return os.open(f"/proc/self/fd/{seen}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(seen)

    # Python stacks.

    def _why_deaf(self) -> str:
        state = _read(self._procfs / "stat").rpartition(")")[2].split()[:1]
        if not state:
            return "its process is gone"
        if state[0] in _DEAF:
            return f"its process is in state {state[0]} and handles no signals"
        mask = _read(self._procfs / "status").partition("\nSigCgt:")[2].partition("\n")[0].strip()
        if not mask or not int(mask, 16) >> (layout.STACKS_SIGNAL - 1) & 1:
            return "its process no longer handles the signal for stacks"
        return ""

    def _write_byte(self, path: Path) -> str | None:
        """Write a byte into a pipe of the job's user; return why that can't be done."""
        try:
            descriptor = self._open(path, stat.S_ISFIFO, os.O_WRONLY)
        except OSError as error:
            return str(error)
        try:
            os.write(descriptor, b"\n")
        except BlockingIOError:
            return "it has answered as often as it does"
        except OSError as error:
            return str(error)
        finally:
            os.close(descriptor)
        return None

    def _drain(self) -> bool:
        assert self._pipe is not None, "asked only while it is open"
        before = len(self._answer)
        while len(self._answer) < _ANSWER_BYTES_MAX:
            try:
                part = os.read(self._pipe, _ANSWER_BYTES_MAX)
            except OSError:
                break
            if not part:
                break
            self._answer += part
        return len(self._answer) > before

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    # The flight recorder.

    def _read_recorder(self) -> _Recorder:
        try:
            with os.fdopen(self._open(self._beside(RECORDER_SUFFIX), stat.S_ISREG), "rb") as file:
                return msgspec.json.decode(file.read(_RECORDER_BYTES_MAX), type=_Recorder)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
            return _Recorder()

    def _open_dump(self) -> bytes | None:
        """Return a dump that was written since the job stands still."""
        if not self._recorder.dump:
            return None
        try:
            with os.fdopen(self._open(Path(self._recorder.dump), stat.S_ISREG), "rb") as file:
                age_s = time.time() - os.fstat(file.fileno()).st_mtime
                if self.rank.step_age_s is None or age_s > self.rank.step_age_s:
                    return None
                return file.read(BYTES_MAX + 1)
        except (OSError, ValueError):  # ValueError: no path
            return None

    def _read_dump(self) -> str:
        data = self._open_dump()
        if data is None:
            return ""
        try:
            dump = trim_dump(parse_dump(data))
            trimmed = msgspec.json.encode(dump).decode()
            if len(trimmed) > DUMP_BYTES_MAX:
                trimmed = msgspec.json.encode(dump.without_history()).decode()
        except RankmendError as error:
            self._notes.append(f"its flight-recorder dump can't be read: {error}")
            return ""
        if len(trimmed) > DUMP_BYTES_MAX:
            self._notes.append(f"its flight-recorder dump is too long: {len(trimmed)} bytes")
            return ""
        return trimmed

    # The kernel.

    def _kernel_lines(self) -> tuple[str, ...]:
        """Return where the main thread is in the kernel; empty where it runs, or that is not for us to know."""
        wchan = _read(self._procfs / "wchan").strip()
        call = _read(self._procfs / "syscall").partition(" ")[0].strip()
        calls = [line.rpartition("] ")[2] for line in _read(self._procfs / "stack").splitlines()]
        reported = [] if wchan in ("", "0") else [f"in {wchan}"]
        if call.isdecimal():
            reported.append(f"system call {call}")
        if calls:
            reported.append("stack " + ", ".join(calls[:_STACK_LINES_MAX]))
        return (", ".join(reported)[:_TEXT_MAX],)[:KERNEL_LINES_MAX] if reported else ()


def _by_job(collections: Sequence[_Collection]) -> dict[str, list[_Collection]]:
    jobs: dict[str, list[_Collection]] = {}
    for collection in collections:
        jobs.setdefault(collection.rank.key[0], []).append(collection)
    return jobs


def _bounded(found: dict[RankKey, ReportedEvidence]) -> dict[RankKey, ReportedEvidence]:
    """Return as much as a report takes, without the dumps where these are too long."""
    retained, left, has_room = {}, EVIDENCE_BYTES_MAX, True
    for key, evidence in found.items():
        bare = msgspec.structs.replace(evidence, dump="")
        for reported in (evidence, bare):
            size = len(msgspec.json.encode(reported))
            if size <= left:
                retained[key], left = reported, left - size
                break
            has_room = False
    if not has_room:
        log.warning("evidence is too long for a report", extra={"ranks": len(found)})
    return retained


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _FILE_BYTES_MAX).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    except OSError:
        return ""
