"""Which jobs of our own launchers run on which nodes, by the word of the nodes' agents.

It is a second word beside the launchers' own: an agent reports with its node's certificate, and its kernel says under which
user a launcher runs. An agent says it again within a minute, also of a job that has left within ten minutes
(`agent.watch.present_jobs`). What is decided by it is in the journal: a blame that it confirms (`NodeBlamed`, or `BlameConfirmed` where
the word comes later), and a drain (`SlurmVouched`).

A node that is lost says nothing more, so a controller that restarts must not forget its last word: the words are in one small file of the
state folder, with their ages. Where several controllers share a database they are there, too, for the controller that takes jobs over
(`recovery.service.shared_words`). What waits for a word waits for at most `recovery.schedulers.slurm.node_work.WORD_S`.
"""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from rankmend.clock import Clock
from rankmend.errors import StorageError
from rankmend.files import read_if_there, replace_file
from rankmend.watched_report import LEFT_S, PRESENT_S, PresentJob, WatchedReport
from recovery.api import wire
from recovery.journal.ledger import Moment

log = logging.getLogger(__name__)

FILE_NAME: Final = "present-jobs.json"
PRESENT_KEPT_S: Final = LEFT_S  # ten reports: a node is blamed minutes after its last
PRESENT_NODES_MAX: Final = wire.NODES_MAX
PRESENT_OF_NODE_MAX: Final = 256  # jobs of one node within that time
SILENT_S: Final = 2 * PRESENT_S + 10.0  # two reports are missing, and some seconds for a retry
SAVED_MAX: Final = 100_000  # words: 20 MB; 20,000 nodes with five jobs each
_BYTES_MAX: Final = 64 << 20
# Between two writes: after a word of a job that is new on its node, and else. 2,000 nodes are 300 kB.
SAVE_NEW_S: Final = 2.0
SAVE_S: Final = 30.0


class SavedWord(msgspec.Struct, frozen=True, array_like=True):
    node: str
    age_s: float
    job: PresentJob


def encode_words(words: Sequence[SavedWord]) -> bytes:
    return msgspec.json.encode(words)


def decode_words(body: bytes, older_s: float) -> tuple[SavedWord, ...]:
    """Return the words that still count, ``older_s`` after they were encoded. What can't be read says nothing."""
    try:
        words = msgspec.json.decode(body, type=tuple[SavedWord, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("words of agents ignored", extra={"error": str(error)})
        return ()
    return _aged(words, older_s)


def _aged(words: Sequence[SavedWord], older_s: float) -> tuple[SavedWord, ...]:
    aged = (msgspec.structs.replace(word, age_s=word.age_s + older_s) for word in words)
    return tuple(word for word in aged if 0.0 <= word.age_s <= PRESENT_KEPT_S)


class WordsKeeper(Protocol):
    """Keeps words over a restart. For the deciding thread; never raises."""

    def load(self) -> tuple[SavedWord, ...]: ...
    def save(self, words: list[SavedWord]) -> None: ...


class _Saved(msgspec.Struct, frozen=True):
    unix_s: float
    monotonic_s: float
    boot_id: str
    words: tuple[SavedWord, ...]


class AgentWordsFile:
    """For one thread."""

    def __init__(self, path: Path, clock: Clock, boot_id: str) -> None:
        self._path, self._clock, self._boot_id = path, clock, boot_id
        self._has_failed = False

    def load(self) -> tuple[SavedWord, ...]:
        """Return the words that still count, with their ages by now. A broken file says nothing."""
        try:
            body = read_if_there(self._path, _BYTES_MAX, StorageError)
            if body is None:
                return ()
            saved = msgspec.json.decode(body, type=_Saved)
        except (StorageError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            fields = {"path": str(self._path), "error": str(error)}
            log.warning("saved words of agents ignored", extra=fields)
            return ()
        at, now = Moment(saved.unix_s, saved.monotonic_s, saved.boot_id), self._now()
        if at.boot_id != now.boot_id and now.unix_s < at.unix_s:
            return ()  # the wall clock has stepped back: nobody knows the age
        return _aged(saved.words, at.until_s(now))

    def save(self, words: list[SavedWord]) -> None:
        """Replace the file. Not durable, so that no slow disk delays decisions. Never raises."""
        now = self._now()
        saved = _Saved(now.unix_s, now.monotonic_s, now.boot_id, tuple(words))
        try:
            replace_file(self._path, msgspec.json.encode(saved), StorageError, durable=False)
            self._has_failed = False
        except StorageError as error:
            if not self._has_failed:
                log.warning("words of agents not saved", extra={"error": str(error)})
            self._has_failed = True

    def _now(self) -> Moment:
        return Moment(self._clock.unix_s(), self._clock.now_s(), self._boot_id)


class PresentJobs:
    """For the deciding thread; `is_on` for any."""

    def __init__(
        self, file: WordsKeeper | None = None, now_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """``now_s``: listened seconds; ``file``: None where nothing outlives a restart."""
        # By node and job id: when the agent last reported it, in listened seconds.
        self._of_node: dict[str, dict[str, tuple[float, PresentJob]]] = {}
        self._reported_at_s: dict[str, float] = {}  # by node: the newest report that arrived here
        self._file = file
        self._saved_at_s = -math.inf
        self._has_new = self._is_changed = False
        if file is not None:
            self.merge(file.load(), now_s())

    def merge(self, words: Sequence[SavedWord], now_s: float) -> frozenset[str]:
        """Take in words that were stored, where they are newer than what is known; return their nodes."""
        nodes = set()
        for word in words:
            if word.node not in self._of_node and len(self._of_node) >= PRESENT_NODES_MAX:
                continue
            said = self._of_node.setdefault(word.node, {})
            at_s, job_id = now_s - word.age_s, word.job.job_id
            if job_id not in said and len(said) >= PRESENT_OF_NODE_MAX:
                continue
            if at_s > said.get(job_id, (-math.inf,))[0]:
                said[job_id] = at_s, word.job
                nodes.add(word.node)
        return frozenset(nodes)

    def take(self, report: WatchedReport, now_s: float) -> None:
        """Record what a node's agent says. For a report that carried the node's certificate."""
        before = self._of_node.pop(report.node, {})
        if before or report.present or report.left:
            self._is_changed = True
        said = {key: word for key, word in before.items() if now_s - word[0] <= PRESENT_KEPT_S}
        for left in report.left:
            at_s, before_s = now_s - left.age_s, said.get(left.job_id, (-math.inf,))[0]
            if left.age_s <= PRESENT_KEPT_S and at_s > before_s:
                said.pop(left.job_id, None)
                said[left.job_id] = at_s, left
        for job in report.present:
            said.pop(job.job_id, None)
            said[job.job_id] = now_s, job
        for key in list(said)[:-PRESENT_OF_NODE_MAX]:
            del said[key]
        self._has_new = self._has_new or not before.keys() >= said.keys()
        self._reported_at_s.pop(report.node, None)
        if said:
            self._of_node[report.node] = said
            self._reported_at_s[report.node] = now_s
        if len(self._of_node) > PRESENT_NODES_MAX:
            oldest = next(iter(self._of_node))
            del self._of_node[oldest]
            self._reported_at_s.pop(oldest, None)

    def knows(self, node: str) -> bool:
        """Return whether an agent has reported with this node's certificate that jobs run there."""
        return node in self._of_node

    def speaks(self, node: str, now_s: float) -> bool:
        """Return whether the node's agent has reported lately which jobs run there."""
        said = self._of_node.get(node, {}).values()
        return any(now_s - at_s <= PRESENT_KEPT_S for at_s, _job in said)

    def is_silent(self, node: str, now_s: float) -> bool:
        """Return whether the node's agent has said lately which jobs run there, to this controller, and has missed two reports since."""
        at_s = self._reported_at_s.get(node)
        return at_s is not None and now_s - at_s >= SILENT_S and self.speaks(node, now_s)

    def is_on(self, node: str, job_id: str, owner: str, now_s: float) -> bool:
        """Return whether the node's agent has reported the job there lately, under one user.

        A user who is called like the job's owner, by name or number, is the owner. Any other is, too, as long as no node reports the
        job under another user: tokens may have other names than users.
        """
        at_s, found = self._of_node.get(node, {}).get(job_id, (-math.inf, None))
        if found is None or now_s - at_s > PRESENT_KEPT_S:
            return False
        if owner in (found.user, str(found.uid)):
            return True
        # A copy: a desk asks, too, while the deciding thread receives reports.
        reports = list(self._of_node.values())
        users = {said[job_id][1].uid for said in reports if job_id in said}
        return len(users) == 1

    def save(self, now_s: float, *, is_last: bool = False) -> None:
        """Store the words for the next start, where enough time has passed since they were stored last."""
        after_s = SAVE_NEW_S if self._has_new else SAVE_S
        is_due = is_last or now_s - self._saved_at_s >= after_s
        if self._file is None or not self._is_changed or not is_due:
            return
        words = [
            SavedWord(node, now_s - at_s, job)
            for node, said in self._of_node.items()
            for at_s, job in said.values()
            if now_s - at_s <= PRESENT_KEPT_S
        ]
        self._file.save(words[-SAVED_MAX:])
        self._saved_at_s = now_s
        self._has_new = self._is_changed = False
