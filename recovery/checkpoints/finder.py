"""Finds the checkpoints under a folder, newest first, and judges them without unpickling.

A pointer file (`latest`) and the highest number are hints, never proofs. What was read once is
not read again while path, inode, size and modification time stay the same, so that a look at
unchanged checkpoints costs their stats. For one thread.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePath
from typing import Final

from rankmend.clock import Clock, SystemClock
from rankmend.errors import SourceError
from recovery.checkpoints.content import ContentIdentity, check_file, identify
from recovery.checkpoints.deadline import Deadline, UnfinishedError
from recovery.checkpoints.folder import check_folder, survey_folder
from recovery.checkpoints.model import (
    Candidate,
    CheckpointFormat,
    CheckpointSettings,
    CheckpointVerdict,
    Hindrance,
)
from recovery.checkpoints.names import (
    POINTER_NAMES,
    has_checkpoint_suffix,
    is_ignored,
    shown,
    step_of,
)
from recovery.checkpoints.order import newest_first
from recovery.checkpoints.reader import DefectError, FileReader, Signature, explain, signature_of

PENDING: Final = "not looked at yet"
_POINTER_BYTES_MAX: Final = 4096
_POINTER_TEXT_MAX: Final = 255
_LINK_TEXT_MAX: Final = 400
_Identified = tuple[Signature, ContentIdentity]


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A candidate as the listing shows it."""

    candidate: Candidate
    signature: Signature | None  # of a file
    refusal: str | None  # why there is nothing to read
    hindrance: Hindrance | None = None  # of the refusal
    hint: str = ""  # the pointer that names it


class CheckpointFinder:
    def __init__(
        self,
        folder: Path,
        settings: CheckpointSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.folder = folder.absolute()  # the ranks may run in another folder
        self.settings = settings or CheckpointSettings()
        self._clock = clock or SystemClock()
        self._identities: dict[str, _Identified] = {}
        self._verdicts: dict[str, tuple[tuple[Signature, ...], CheckpointVerdict]] = {}

    def find(
        self,
        now_unix_s: float,
        *,
        is_training: bool = False,
        enough: int | None = None,
        timeout_s: float | None = None,
    ) -> list[CheckpointVerdict]:
        """Return every candidate, newest first, each with its verdict.

        ``enough``: how many valid ones to stop after. While training runs, what changed within
        the grace is still being written. Raises SourceError when the folder can't be listed.
        """
        settings = self.settings
        deadline = Deadline(self._clock, timeout_s or settings.validate_timeout_s)
        verdicts: tuple[CheckpointVerdict, ...] = ()
        for latest in self.look(deadline, enough or settings.enough):
            verdicts = latest
        if not is_training:
            return list(verdicts)
        return [
            settle(verdict, abs(now_unix_s - verdict.candidate.modified_unix_s), settings.grace_s)
            for verdict in verdicts
        ]

    def look(self, deadline: Deadline, enough: int) -> Iterator[tuple[CheckpointVerdict, ...]]:
        """Yield all verdicts again after each that was reached; at first all are `PENDING`."""
        try:
            sightings = self._list(deadline)
        except UnfinishedError as error:
            raise SourceError(f"listing checkpoint folder {self.folder}: {error}") from error
        verdicts = [
            CheckpointVerdict(
                seen.candidate,
                False,
                seen.refusal or PENDING,
                seen.hindrance if seen.refusal else Hindrance.UNREAD,
            )
            for seen in sightings
        ]
        yield tuple(verdicts)
        newest_valid = None
        valid = judged = 0
        for index, seen in enumerate(sightings):
            if seen.refusal is None:
                verdict = self._recall(seen)
                if verdict is None and valid >= enough:
                    reason = f"not looked at: older than {newest_valid}, which is valid"
                    verdict = CheckpointVerdict(seen.candidate, False, reason, Hindrance.UNREAD)
                elif verdict is None and judged >= self.settings.validate_max:
                    reason = f"not looked at: {judged} newer ones were looked at first"
                    verdict = CheckpointVerdict(seen.candidate, False, reason, Hindrance.UNREAD)
                elif verdict is None:
                    judged += 1
                    # half of what is left: an older one still gets its turn
                    is_last = index == len(sightings) - 1
                    verdict = self._judge(seen, deadline.share(1.0 if is_last else 0.5))
                if verdict.is_valid:
                    valid += 1
                    newest_valid = newest_valid or Path(verdict.candidate.path).name
                verdicts[index] = verdict
            verdicts[index] = _with_hint(verdicts[index], seen.hint)
            yield tuple(verdicts)
        paths = {seen.candidate.path for seen in sightings}
        self._verdicts = {path: it for path, it in self._verdicts.items() if path in paths}

    def _list(self, deadline: Deadline) -> list[_Sighting]:
        """Return what may be a checkpoint, newest first: by step where known, then by time."""
        settings = self.settings
        sightings = []
        pointers = []
        try:
            if _has_marker(self.folder, settings):
                return [_folder_sighting(self.folder, self.folder.stat())]
            with os.scandir(self.folder) as scan:
                entries = list(islice(scan, settings.entries_max + 1))
        except OSError as error:
            raise SourceError(
                f"checkpoint folder {self.folder} can't be read: {error.strerror or error}"
            ) from error
        known, self._identities = self._identities, {}
        for entry in entries[: settings.entries_max]:
            deadline.check()
            if is_ignored(entry.name):
                continue
            if entry.name in POINTER_NAMES and (text := _read_pointer(entry, deadline)):
                pointers.append((entry.name, text))
            elif not entry.name.isprintable():  # nor fit for the journal
                refusal = "its name is not printable UTF-8"
                sightings.append(_refused(Path(entry.path), None, refusal, Hindrance.DAMAGED))
            elif fnmatchcase(entry.name, settings.name_pattern):
                seen = self._sight(entry, known.get(entry.path), deadline)
                if seen is not None:
                    sightings.append(seen)
        for name, text in pointers:
            sightings = _follow(self.folder, name, text, sightings)
        if len(entries) > settings.entries_max:
            refusal = f"only {settings.entries_max} entries of it were looked at"
            sightings.append(_refused(self.folder, None, refusal, Hindrance.UNREAD))
        return newest_first(sightings, lambda seen: seen.candidate)

    def _sight(
        self, entry: os.DirEntry[str], known: _Identified | None, deadline: Deadline
    ) -> _Sighting | None:
        """Return the entry as a candidate, or None when it is none."""
        path = Path(entry.path)
        is_named = has_checkpoint_suffix(entry.name) or step_of(entry.name) is not None
        status = None
        try:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                return _refused(path, status, *self._describe_link(path))
            if stat.S_ISDIR(status.st_mode):
                is_candidate = step_of(entry.name) is not None or _has_marker(path, self.settings)
                return _folder_sighting(path, status) if is_candidate else None
            if stat.S_ISREG(status.st_mode):
                return self._sight_file(path, status, known, deadline)
            refusal, hindrance = "not a regular file", Hindrance.DAMAGED
        except OSError as error:
            refusal, hindrance = explain(error), Hindrance.UNREADABLE
        except DefectError as error:
            refusal, hindrance = str(error), Hindrance.DAMAGED
        return _refused(path, status, refusal, hindrance) if is_named else None

    def _sight_file(
        self, path: Path, status: os.stat_result, known: _Identified | None, deadline: Deadline
    ) -> _Sighting | None:
        signature = signature_of(str(path), status)
        if known is None or known[0] != signature:
            with FileReader(str(path), deadline) as reader:
                known = (signature, identify(reader))
        self._identities[str(path)] = known
        identity = known[1]
        if identity.format is CheckpointFormat.UNKNOWN and not has_checkpoint_suffix(path.name):
            return None  # a log, a configuration
        step = identity.step if identity.step is not None else step_of(path.name)
        modified_unix_s = status.st_mtime_ns / 1e9
        candidate = Candidate(
            str(path),
            step,
            identity.format,
            status.st_size,
            modified_unix_s,
            is_step_exact=identity.step is not None,
        )
        return _Sighting(candidate, signature, None)

    def _describe_link(self, path: Path) -> tuple[str, Hindrance]:
        target = Path(os.path.realpath(path))
        if not os.path.lexists(target):
            reason = f"a link that leads nowhere: {shown(str(target), _LINK_TEXT_MAX)}"
            return reason, Hindrance.MISSING
        if target.parent != Path(os.path.realpath(self.folder)):
            reason = f"a link that leads out of the folder: {shown(str(target), _LINK_TEXT_MAX)}"
            return reason, Hindrance.DAMAGED
        return f"a link to {shown(target.name)}, which is looked at itself", Hindrance.ALIAS

    def _recall(self, seen: _Sighting) -> CheckpointVerdict | None:
        """Return the verdict on a file whose bytes were read before."""
        known = self._verdicts.get(seen.candidate.path)
        if known is None or seen.signature is None or known[0] != (seen.signature,):
            return None
        return replace(known[1], candidate=seen.candidate)

    def _judge(self, seen: _Sighting, deadline: Deadline) -> CheckpointVerdict:
        candidate = seen.candidate
        try:
            if candidate.format is CheckpointFormat.FOLDER:
                return self._judge_folder(candidate, deadline)
            assert seen.signature is not None, "a file was sighted with its status"
            with FileReader(candidate.path, deadline) as reader:
                verdict = _check(candidate, lambda: check_file(reader, candidate.format))
                reader.check_unchanged(seen.signature)
        except OSError as error:
            return CheckpointVerdict(candidate, False, explain(error), Hindrance.UNREADABLE)
        except UnfinishedError as error:
            return CheckpointVerdict(candidate, False, str(error), Hindrance.UNREADABLE)
        except DefectError as error:
            return CheckpointVerdict(candidate, False, str(error), Hindrance.DAMAGED)
        self._verdicts[candidate.path] = ((seen.signature,), verdict)
        return verdict

    def _judge_folder(self, candidate: Candidate, deadline: Deadline) -> CheckpointVerdict:
        path, settings = candidate.path, self.settings
        survey = survey_folder(path, settings, deadline)
        candidate = replace(
            candidate,
            size_bytes=survey.size_bytes,
            modified_unix_s=max(candidate.modified_unix_s, survey.modified_unix_s),
        )
        known = self._verdicts.get(path)
        if survey.defect is None and known is not None and known[0] == survey.signatures:
            return replace(known[1], candidate=candidate)
        verdict = _check(candidate, lambda: check_folder(path, survey, settings, deadline))
        if survey_folder(path, settings, deadline).signatures != survey.signatures:
            reason = "changed while it was read"
            return CheckpointVerdict(candidate, False, reason, Hindrance.WRITING)
        self._verdicts[path] = (survey.signatures, verdict)
        return verdict


def settle(verdict: CheckpointVerdict, changed_age_s: float, grace_s: float) -> CheckpointVerdict:
    """Return the verdict while training runs: what changed just now is still being written."""
    if changed_age_s >= grace_s:
        return verdict
    reason = f"still being written: changed {changed_age_s:.1f} s ago; so far {verdict.reason}"
    return replace(verdict, is_valid=False, reason=reason, hindrance=Hindrance.WRITING)


def _check(candidate: Candidate, check: Callable[[], str]) -> CheckpointVerdict:
    try:
        return CheckpointVerdict(candidate, True, f"complete: {check()}")
    except DefectError as error:
        return CheckpointVerdict(candidate, False, str(error), Hindrance.DAMAGED)


def _with_hint(verdict: CheckpointVerdict, hint: str) -> CheckpointVerdict:
    return replace(verdict, reason=f"{verdict.reason}; {hint}") if hint else verdict


def _has_marker(path: Path, settings: CheckpointSettings) -> bool:
    return (path / settings.marker).is_file()


def _refused(
    path: Path, status: os.stat_result | None, refusal: str, hindrance: Hindrance
) -> _Sighting:
    """Return a sighting that is reported and not read; its path is made printable for a person."""
    path = path.with_name(shown(path.name)) if not path.name.isprintable() else path
    size_bytes = status.st_size if status else 0
    modified_unix_s = status.st_mtime_ns / 1e9 if status else 0.0
    step = step_of(path.name)
    candidate = Candidate(str(path), step, CheckpointFormat.UNKNOWN, size_bytes, modified_unix_s)
    return _Sighting(candidate, None, refusal, hindrance)


def _folder_sighting(path: Path, status: os.stat_result) -> _Sighting:
    modified_unix_s = status.st_mtime_ns / 1e9
    step = step_of(path.name)
    candidate = Candidate(str(path), step, CheckpointFormat.FOLDER, 0, modified_unix_s)
    return _Sighting(candidate, None, None)


def _read_pointer(entry: os.DirEntry[str], deadline: Deadline) -> str | None:
    """Return the name or number in a pointer file, or None when it is no such file."""
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        with FileReader(entry.path, deadline) as reader:
            data = reader.read(0, min(reader.size_bytes, _POINTER_BYTES_MAX))
    except (OSError, DefectError):
        return None
    text = data.decode("utf-8", "replace").strip()
    is_name = text.isprintable() and 0 < len(text) <= _POINTER_TEXT_MAX
    return text if is_name else None


def _follow(root: Path, pointer: str, text: str, sightings: list[_Sighting]) -> list[_Sighting]:
    """Return the sightings with this pointer as a hint, and with what it names if that is missing."""
    name = PurePath(text).name
    step = step_of(text)
    hint = f"{pointer} points to it"
    followed = []
    is_found = False
    for seen in sightings:
        is_named = Path(seen.candidate.path).name == name
        is_numbered = text.isdecimal() and step is not None and seen.candidate.step == step
        is_found = is_found or is_named or is_numbered
        followed.append(replace(seen, hint=hint) if is_named or is_numbered else seen)
    if not is_found and name:
        refusal = f"missing: named by the pointer file {pointer}"
        followed.append(_refused(root / name, None, refusal, Hindrance.MISSING))
    return followed
