"""Finds the checkpoints under a folder, newest first, and judges them without unpickling.

A pointer file (`latest`) and the highest number are hints, never proofs. What was read once is
not read again while path, inode, size and modification time stay the same, so that a look at
unchanged checkpoints costs their stats. For one thread at a time.

A look that somebody waits for reads content for `check_wait_s` at most. What is whole in its structure by then is
valid, with the bytes that were not checked yet (`CheckpointVerdict.unchecked_bytes`); of what is older only the structure is read.
"""

import contextlib
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final

from rankmend.clock import Clock, SystemClock
from rankmend.errors import SourceError
from rankmend.printable import size_in_words
from recovery.checkpoints.deadline import Deadline, UnfinishedError
from recovery.checkpoints.deeper import describe_deeper, find_deeper
from recovery.checkpoints.files.content import check_file
from recovery.checkpoints.files.reader import (
    ChangedError,
    DefectError,
    FileReader,
    PartsMissingError,
    ReadsBeside,
    Signature,
    SumError,
    is_elusive,
)
from recovery.checkpoints.folder import (
    check_part,
    check_structure,
    earlier_files,
    explain_in,
    survey_folder,
)
from recovery.checkpoints.formats.format import DividedFormat
from recovery.checkpoints.formats.registry import format_of
from recovery.checkpoints.known_files import Coverage, KnownFiles
from recovery.checkpoints.listing import Listing, Sighting, describe_unknown
from recovery.checkpoints.manifests import Manifests, Stamp
from recovery.checkpoints.names import piece_of, plain_rank_of, shown, with_rank
from recovery.checkpoints.order import BY_EVIDENCE, CandidateEvidence, say_reason
from recovery.checkpoints.storage_calls import StorageCalls
from recovery.messages.candidates import (
    Candidate,
    CheckpointSettings,
    CheckpointVerdict,
    Hindrance,
    Share,
)

_LISTING: Final = ""  # what no path is
_MANIFESTS: Final = "manifests"
_DEEPER: Final = "deeper"
_DEEPER_S: Final = 600.0  # between two looks deeper beside training: every launcher may make them
_OTHERS_SHOWN: Final = 4  # names in a reason
_LOOKS_MAX: Final = 3  # in one, where what was found valid vanishes meanwhile
_CONTENT_RATIO: Final = (
    0.7  # of the time for one candidate; the rest is for the structure of its other files
)
_UNCHECKED: Final = "were not checked yet"
_BESIDE_UNCHECKED_MAX: Final = 3  # older ones that are read to find one that was checked whole


@dataclass(frozen=True, slots=True)
class _Judged:
    """A verdict and the files that it is about."""

    signatures: tuple[Signature, ...]
    is_folder: bool
    verdict: CheckpointVerdict
    share: Share  # that was requested
    stamp: Stamp  # of the manifests
    since_s: float


@dataclass
class _Look:
    """A look under way: what it has found so far, newest first."""

    deadline: Deadline
    enough: int
    content_until_s: float  # if somebody waits
    is_hurried: (
        bool  # a restart waits: what is older than one that can be restored is not worth its time
    )
    left: int  # candidates that it has not come to
    judged: int = 0
    checked: int = 0  # valid, and read to their ends
    unchecked: int = 0  # the first that is valid without, and all that are older
    newest_valid: str = ""

    def note(self, verdict: CheckpointVerdict) -> None:
        self.unchecked += self.unchecked > 0 or verdict.unchecked_bytes > 0
        self.checked += verdict.is_checked
        if verdict.is_valid:
            self.newest_valid = self.newest_valid or Path(verdict.candidate.path).name

    def why_not(self, settings: CheckpointSettings, later: str) -> str | None:
        """Return why the next one is not read any more, or None. ``later``: why it comes after a valid one."""
        if self.checked >= self.enough:
            return later
        if self.judged >= settings.validate_max:
            return f"not checked: {self.judged} newer ones were checked first"
        if self.is_hurried and self.unchecked > _BESIDE_UNCHECKED_MAX:
            return f"not checked: older than {self.newest_valid}, which can be restored"
        return None


class CheckpointFinder:
    def __init__(
        self,
        folder: Path,
        settings: CheckpointSettings | None = None,
        clock: Clock | None = None,
        manifests: Manifests | None = None,
        say: Callable[[str], None] | None = None,
        written: Callable[[], Collection[str]] | None = None,
        beside: ReadsBeside | None = None,
    ) -> None:
        """``written``: returns what the job's ranks were seen writing. ``say``: told once where the script saves, if nothing there can be used: in an unknown form, or too deep. ``beside``: another process that reads beside training."""
        self.folder = folder.absolute()  # the ranks may run in another folder
        self.settings = settings or CheckpointSettings()
        self.share = Share()  # of later looks
        self.owed: frozenset[str] = frozenset()
        """Paths that looks beside training check before all others: ranks restore them unchecked."""
        self.restored: Mapping[str, float] = {}
        """What ranks have restored, by path, and when it was saved."""
        self._clock = clock or SystemClock()
        self._calls = StorageCalls(self._clock)
        self._listing = Listing(self.folder, self.settings, self._clock, self._calls)
        self._files = KnownFiles(manifests, self._clock, beside=beside)
        self._say = say
        if written is not None:
            self._listing.written = written
        self.deeper: str | None = None
        """What looked like a checkpoint deeper in the folder, where nothing else did."""
        self._deeper_at_s = -math.inf
        self._judged: dict[str, _Judged] = {}
        self._elusive: set[str] = set()  # candidates that changed between the listing and the read
        self._paths: set[str] = set()  # for which manifests of others were removed

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the names of files that looked like checkpoints by their names alone in the last look."""
        return self._listing.unknown

    @property
    def evidence(self) -> Mapping[str, CandidateEvidence]:
        """Return what speaks for and against each candidate of the last look, by path."""
        return self._listing.evidence

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
        # No restart waits for a person's answer: its whole time is for the content, too.
        for latest in self.look(deadline, enough or settings.enough, math.inf):
            verdicts = latest
        if not is_training:
            return list(verdicts)
        return [
            settle(verdict, abs(now_unix_s - verdict.candidate.modified_unix_s), settings.grace_s)
            for verdict in verdicts
        ]

    def look(
        self, deadline: Deadline, enough: int, check_wait_s: float | None = None
    ) -> Iterator[tuple[CheckpointVerdict, ...]]:
        """Yield all verdicts again after each that was reached; at first all are `Hindrance.PENDING`.

        Where the newest valid one was deleted while older ones were read, all begins anew; and once,
        where a newer one changed between the listing and the read: that is no damage. ``check_wait_s``: in the
        place of that of the settings.
        """
        may_look_again = True
        wait_s = self.settings.check_wait_s if check_wait_s is None else check_wait_s
        content_until_s = self._clock.now_s() + (wait_s if deadline.is_awaited else math.inf)
        for _again in range(_LOOKS_MAX):
            verdicts: tuple[CheckpointVerdict, ...] = ()
            self._elusive.clear()
            for verdicts in self._look_once(deadline, enough, content_until_s):
                yield verdicts
            newer = list(takewhile(lambda verdict: not verdict.is_valid, verdicts))
            newest = verdicts[len(newer)] if len(newer) < len(verdicts) else None
            # Beside training the next look comes anyway, and a change is a save under way.
            if may_look_again and deadline.is_awaited and self._has_eluded(newer, deadline):
                may_look_again = False
            elif newest is None or self._is_there(newest.candidate, deadline):
                return

    def _has_eluded(self, verdicts: Sequence[CheckpointVerdict], deadline: Deadline) -> bool:
        """Return whether one of these is there and was another when it was read."""
        eluded = [
            verdict.candidate for verdict in verdicts if verdict.candidate.path in self._elusive
        ]
        return any(self._is_there(candidate, deadline) for candidate in eluded)

    def _is_there(self, candidate: Candidate, deadline: Deadline) -> bool:
        paths = (candidate.path, *candidate.parts)
        try:
            return self._calls.run(
                candidate.path, lambda: all(map(os.path.lexists, paths)), deadline
            )
        except UnfinishedError:
            return True

    def _say_where(self, deadline: Deadline) -> None:
        """Say what has to be known by a person who expects a restart from what the script saves.

        Beside training an unknown file may be a log from before the first save.
        """
        text = None
        if self.unknown:
            if deadline.is_awaited:
                text = describe_unknown(str(self.folder), self.unknown)
        elif deadline.is_awaited or self._clock.now_s() - self._deeper_at_s >= _DEEPER_S:
            self._deeper_at_s = self._clock.now_s()
            with contextlib.suppress(UnfinishedError):
                self.deeper = self._calls.run(
                    _DEEPER, lambda: find_deeper(self.folder, deadline), deadline
                )
            text = self.deeper and describe_deeper(str(self.folder), self.deeper)
        if text and self._say is not None:
            self._say(text)
            self._say = None

    def _look_once(
        self, deadline: Deadline, enough: int, content_until_s: float
    ) -> Iterator[tuple[CheckpointVerdict, ...]]:
        try:
            self._listing.restored = self.restored
            sightings = self._calls.run(_LISTING, lambda: self._listing.list(deadline), deadline)
        except UnfinishedError as error:
            raise SourceError(f"listing checkpoint folder {self.folder}: {error}") from error
        if sightings:
            self._say = self.deeper = None
        else:
            self._say_where(deadline)
        verdicts = [
            CheckpointVerdict(
                seen.candidate,
                False,
                seen.refusal or "not checked yet",
                seen.hindrance if seen.refusal else Hindrance.PENDING,
            )
            for seen in sightings
        ]
        yield tuple(verdicts)
        share = self.share
        owed = {}
        for index, seen in enumerate(sightings):
            is_owed = not deadline.is_awaited and seen.candidate.path in self.owed
            if is_owed and seen.refusal is None:
                owed[index] = verdicts[index] = self._judge_apart(seen, deadline.share(0.5), share)
                yield tuple(verdicts)
        is_hurried = content_until_s < self._clock.now_s() + deadline.left_s()
        look = _Look(deadline, enough, content_until_s, is_hurried, len(sightings))
        for index, seen in enumerate(sightings):
            if seen.refusal is None:
                verdict = self._recall(seen, share, deadline) or owed.get(index)
                verdict = verdict or self._judge_next(seen, look, share)
                look.note(verdict)
                verdicts[index] = verdict
            look.left -= 1
            verdicts[index] = _with_hint(verdicts[index], seen.hint)
            yield tuple(verdicts)
        paths = {seen.candidate.path for seen in sightings}
        self._judged = {
            path: it for path, it in list(self._judged.items()) if path in paths
        }  # a copy: a read that was left behind may add to it
        self._files.forget_gone(paths)
        if not deadline.is_awaited:
            self._keep(verdicts, share, deadline)
            if share.number == 0 and paths != self._paths:
                self._paths = paths
                with contextlib.suppress(UnfinishedError):
                    self._calls.run(
                        _MANIFESTS, lambda: self._files.remove_gone(paths, deadline), deadline
                    )

    def _judge_next(self, seen: Sighting, look: "_Look", share: Share) -> CheckpointVerdict:
        """Return the verdict on one that is not known yet, if it may still matter."""
        later = self._why_later(seen.candidate, look.newest_valid)
        if (reason := look.why_not(self.settings, later)) is not None:
            return CheckpointVerdict(seen.candidate, False, reason, Hindrance.UNREAD)
        look.judged += 1
        # half of what is left: an older one still gets its turn
        half = look.deadline.share(1.0 if look.left == 1 else 0.5)
        if not look.deadline.is_awaited:
            return self._judge_apart(seen, half, share)
        left_s = look.content_until_s - self._clock.now_s()
        if look.is_hurried and look.unchecked:
            left_s = 0.0
        content = half.within(min(left_s, half.left_s() * _CONTENT_RATIO))
        return self._judge_apart(seen, half, share, content)

    def _why_later(self, candidate: Candidate, newest_valid: str) -> str:
        evidence = self.evidence.get(candidate.path)
        if evidence is None or evidence.reason not in BY_EVIDENCE:
            return f"not checked: older than {newest_valid}, which is valid"
        return f"not checked: {say_reason(evidence.reason)}; {newest_valid} is valid"

    def _judge_apart(
        self,
        seen: Sighting,
        deadline: Deadline,
        share: Share,
        content: Deadline | None = None,
    ) -> CheckpointVerdict:
        """Return the verdict, also where the storage does not answer a read of this candidate.

        ``content``: until when more than its structure is read; None: until the deadline, too.
        """
        candidate = seen.candidate
        try:
            return self._calls.run(
                candidate.path, lambda: self._judge(seen, deadline, share, content), deadline
            )
        except UnfinishedError as error:
            return CheckpointVerdict(candidate, False, str(error), Hindrance.UNREADABLE)

    def _keep(
        self, verdicts: Sequence[CheckpointVerdict], share: Share, deadline: Deadline
    ) -> None:
        """Keep manifests of what is valid and has not changed for the grace."""
        for verdict in verdicts:
            judged = self._judged.get(verdict.candidate.path)
            if not verdict.is_valid or judged is None or not judged.verdict.is_valid:
                continue
            is_still = self._clock.now_s() - judged.since_s >= self.settings.grace_s
            if is_still and self._files.lacks_manifest(
                verdict.candidate.path, judged.signatures, share
            ):
                self._keep_one(verdict.candidate, judged, share, deadline)

    def _keep_one(
        self, candidate: Candidate, judged: _Judged, share: Share, deadline: Deadline
    ) -> None:
        path = candidate.path
        picked = _picked(judged.is_folder, judged.signatures, share)
        folder = path if judged.is_folder else candidate.directory

        def keep() -> None:
            self._files.keep(path, folder, judged.signatures, picked, share, deadline)

        # gone, changed or not to be read: the next look says so
        with contextlib.suppress(OSError, DefectError, UnfinishedError):
            self._calls.run(path, keep, deadline)

    def _recall(self, seen: Sighting, share: Share, deadline: Deadline) -> CheckpointVerdict | None:
        """Return the verdict on files whose bytes were read before."""
        if seen.signature is None:
            return None
        known = self._known(seen.candidate.path, _signatures(seen), share, deadline)
        return None if known is None else replace(known, candidate=seen.candidate)

    def _known(
        self, path: str, signatures: tuple[Signature, ...], share: Share, deadline: Deadline
    ) -> CheckpointVerdict | None:
        """Return the verdict on these very files, unless there is more to know by now."""
        known = self._judged.get(path)
        if known is None or known.signatures != signatures:
            return None
        if known.verdict.is_valid and not known.verdict.share.is_whole:
            is_same = (known.share, known.stamp) == (share, self._files.stamp(path, deadline))
            return known.verdict if is_same else None
        return known.verdict

    def _remember(
        self,
        verdict: CheckpointVerdict,
        signatures: tuple[Signature, ...],
        share: Share,
        stamp: Stamp,
        *,
        is_folder: bool = False,
    ) -> None:
        if verdict.unchecked_bytes:
            return  # the next look goes on with it
        path = verdict.candidate.path
        known = self._judged.get(path)
        is_same = known is not None and known.signatures == signatures
        since_s = known.since_s if known is not None and is_same else self._clock.now_s()
        self._judged[path] = _Judged(signatures, is_folder, verdict, share, stamp, since_s)

    def _judge(
        self, seen: Sighting, deadline: Deadline, share: Share, content: Deadline | None
    ) -> CheckpointVerdict:
        candidate = seen.candidate
        try:
            stamp = self._files.stamp(candidate.path, deadline)
            if seen.tree is not None:
                return self._judge_folder(seen, deadline, share, stamp, content)
            verdict = self._judge_files(seen, deadline, share, content)
        except OSError as error:
            if is_elusive(error):
                self._elusive.add(candidate.path)
            reason = explain_in(candidate.path, error)
            return CheckpointVerdict(candidate, False, reason, Hindrance.UNREADABLE)
        except UnfinishedError as error:
            return CheckpointVerdict(candidate, False, str(error), Hindrance.UNREADABLE)
        except DefectError as error:
            return CheckpointVerdict(candidate, False, str(error), Hindrance.DAMAGED)
        self._remember(verdict, _signatures(seen), share, stamp)
        return verdict

    def _judge_files(
        self, seen: Sighting, deadline: Deadline, share: Share, content: Deadline | None
    ) -> CheckpointVerdict:
        """Return the verdict on one file, or on the files of one save: the first share reads them."""
        candidate = seen.candidate
        members = {other.candidate.path: other.candidate for other in (seen, *seen.others)}
        proofs: dict[str, str] = {}

        def check_one(reader: FileReader) -> bool:
            proofs[reader.path] = check_file(reader, members[reader.path].format)
            return True

        signatures = _signatures(seen)
        picked = _picked(False, signatures, share)
        try:
            coverage = self._files.check(
                *(candidate.path, candidate.directory, signatures, picked),
                *(check_one, deadline, content),
            )
        except ChangedError as error:
            self._elusive.add(candidate.path)
            return CheckpointVerdict(candidate, False, str(error), Hindrance.WRITING)
        except DefectError as error:
            reason = str(error).removeprefix(f"{shown(candidate.tag)}: ")
            return CheckpointVerdict(
                *(candidate, False, reason, Hindrance.DAMAGED),
                has_wrong_sum=isinstance(error, SumError),
            )
        if coverage.unread_bytes:
            size = size_in_words(coverage.unread_bytes)
            what = f"{size} of its files" if seen.others else f"its last {size}"
            text = f"whole in its structure; {what} {_UNCHECKED}"
            text += _other_files_text(seen) if seen.others else ""
            return CheckpointVerdict(candidate, True, text, unchecked_bytes=coverage.unread_bytes)
        if not coverage.is_whole:
            text = f"share 1 of {share.count} reads it"
            return CheckpointVerdict(candidate, True, text, share=share)
        others = _other_files_text(seen)
        proof = proofs.get(candidate.path, "unchanged since it was checked")
        text = f"complete: {proof}" + (others if seen.others else "")
        return CheckpointVerdict(candidate, True, text)

    def _judge_folder(
        self,
        seen: Sighting,
        deadline: Deadline,
        share: Share,
        stamp: Stamp,
        content: Deadline | None,
    ) -> CheckpointVerdict:
        candidate, settings = seen.candidate, self.settings
        path = candidate.path
        assert seen.tree is not None, "a folder was sighted with its names"
        survey = survey_folder(path, settings, deadline)
        candidate = replace(
            candidate,
            size_bytes=survey.size_bytes,
            modified_unix_s=max(candidate.modified_unix_s, survey.modified_unix_s),
            oldest_unix_s=candidate.oldest_unix_s or survey.oldest_unix_s,
        )
        known = self._known(path, survey.signatures, share, deadline)
        if survey.defect is None and known is not None:
            step = known.candidate.step if known.candidate.is_step_exact else candidate.step
            return replace(known, candidate=replace(candidate, step=step))
        tree = replace(
            survey.tree(path, seen.tree.beside, deadline),
            earlier=earlier_files(seen.tree, candidate.format, survey, deadline),
            earlier_path=seen.tree.earlier_path,
        )
        picked = _picked(True, survey.signatures, share)

        def check() -> tuple[str, Coverage]:
            proofs = check_structure(tree, survey, candidate.format, settings)
            coverage = self._files.check(
                path,
                path,
                survey.signatures,
                picked,
                lambda reader: check_part(reader, survey, tree, candidate.format),
                deadline,
                content,
            )
            return proofs, coverage

        verdict = _check(candidate, check, share)
        layout = format_of(candidate.format)
        if verdict.is_valid and layout is not None and (step := layout.step(tree)) is not None:
            verdict = replace(verdict, candidate=replace(candidate, step=step, is_step_exact=True))
        if verdict.is_valid and isinstance(layout, DividedFormat):
            verdict = replace(verdict, parts=layout.parts(tree))
        if survey_folder(path, settings, deadline).signatures != survey.signatures:
            self._elusive.add(path)
            reason = "changed while it was read"
            return CheckpointVerdict(candidate, False, reason, Hindrance.WRITING)
        self._remember(verdict, survey.signatures, share, stamp, is_folder=True)
        return verdict


def settle(verdict: CheckpointVerdict, changed_age_s: float, grace_s: float) -> CheckpointVerdict:
    """Return the verdict while training runs: what changed just now is still being written."""
    if changed_age_s >= grace_s:
        return verdict
    reason = f"still being written: changed {changed_age_s:.1f} s ago; so far {verdict.reason}"
    young = verdict.is_valid
    return replace(
        verdict, is_valid=False, reason=reason, hindrance=Hindrance.WRITING, is_young=young
    )


def _check(
    candidate: Candidate, check: Callable[[], tuple[str, Coverage]], share: Share
) -> CheckpointVerdict:
    try:
        proofs, coverage = check()
    except PartsMissingError as error:
        return CheckpointVerdict(candidate, False, str(error), Hindrance.DAMAGED, parts=error.parts)
    except DefectError as error:
        return CheckpointVerdict(
            *(candidate, False, str(error), Hindrance.DAMAGED),
            has_wrong_sum=isinstance(error, SumError),
        )
    text, unread_bytes = f"complete: {proofs}; {coverage}", coverage.unread_bytes
    if unread_bytes:
        text = (
            f"whole in its structure: {proofs}; {coverage}; "
            f"{size_in_words(unread_bytes)} of its files {_UNCHECKED}"
        )
    if coverage.is_whole:
        return CheckpointVerdict(candidate, True, text, unchecked_bytes=unread_bytes)
    text += f", share {share.number + 1} of {share.count}"
    return CheckpointVerdict(candidate, True, text, share=share, unchecked_bytes=unread_bytes)


def _picked(is_folder: bool, signatures: tuple[Signature, ...], share: Share) -> Collection[str]:
    """Return the paths whose content this share reads; the first share reads all files of a flat save."""
    paths = frozenset(signature[0] for signature in signatures)
    if is_folder:
        return share.pick(paths)
    return paths if share.number == 0 else frozenset()


def _other_files_text(seen: Sighting) -> str:
    """Return which other files belong to the save, and what `{checkpoint}` is if each rank has one."""
    names = [other.candidate.tag for other in seen.others]
    more = f", ... ({len(names)})" if len(names) > _OTHERS_SHOWN else ""
    text = f"; with {', '.join(names[:_OTHERS_SHOWN])}{more}"
    tags = (seen.candidate.tag, *names)
    if all(with_rank(name, 0) is not None for name in tags):
        return f"{text}; {{checkpoint}} is each rank's own file"
    plain = plain_rank_of(seen.candidate.tag)
    if plain is not None and all(plain_rank_of(name) for name in names):
        pattern = plain.shared.replace("#", "{rank}")
        return f"{text}; {{checkpoint}} is rank {plain.number}'s: {{checkpoint_dir}}/{pattern} is each rank's own"
    if all(piece_of(name).is_rank for name in tags):
        return (
            f"{text}; {{checkpoint}} is {tags[0]} on every rank: the names tell places in groups of ranks, and which ranks have "
            "these isn't known here, so let the script find its own file in {checkpoint_dir} by {checkpoint_step}"
        )
    return text


def _with_hint(verdict: CheckpointVerdict, hint: str) -> CheckpointVerdict:
    return replace(verdict, reason=f"{verdict.reason}; {hint}") if hint else verdict


def _signatures(seen: Sighting) -> tuple[Signature, ...]:
    return tuple(other.signature for other in (seen, *seen.others) if other.signature is not None)
