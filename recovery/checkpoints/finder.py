"""Finds the checkpoints under a folder, newest first, and judges them without unpickling.

A pointer file (`latest`) and the highest number are hints, never proofs. What was read once is
not read again while path, inode, size and modification time stay the same, so that a look at
unchanged checkpoints costs their stats. For one thread.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from rankmend.clock import Clock, SystemClock
from rankmend.errors import SourceError
from recovery.checkpoints.content import check_file
from recovery.checkpoints.deadline import Deadline, UnfinishedError
from recovery.checkpoints.folder import check_folder, explain_in, survey_folder
from recovery.checkpoints.formats.registry import format_of
from recovery.checkpoints.listing import Listing, Sighting
from recovery.checkpoints.model import (
    Candidate,
    CheckpointSettings,
    CheckpointVerdict,
    Hindrance,
    Share,
)
from recovery.checkpoints.names import shown
from recovery.checkpoints.reader import ChangedError, DefectError, FileReader, Signature
from recovery.checkpoints.storage_calls import StorageCalls

PENDING: Final = "not checked yet"
_LISTING: Final = ""  # what no path is
_LOOKS_MAX: Final = 3  # in one, where what was found valid vanishes meanwhile


class CheckpointFinder:
    def __init__(
        self,
        folder: Path,
        settings: CheckpointSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.folder = folder.absolute()  # the ranks may run in another folder
        self.settings = settings or CheckpointSettings()
        self.share = Share()  # of later looks
        self._clock = clock or SystemClock()
        self._calls = StorageCalls(self._clock)
        self._listing = Listing(self.folder, self.settings, self._clock, self._calls)
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
        """Yield all verdicts again after each that was reached; at first all are `PENDING`.

        Where the newest valid one was deleted while older ones were read, all begins anew.
        """
        for _again in range(_LOOKS_MAX):
            verdicts: tuple[CheckpointVerdict, ...] = ()
            for verdicts in self._look_once(deadline, enough):
                yield verdicts
            newest = next((verdict for verdict in verdicts if verdict.is_valid), None)
            if newest is None or self._is_there(newest.candidate, deadline):
                return

    def _is_there(self, candidate: Candidate, deadline: Deadline) -> bool:
        paths = (candidate.path, *candidate.parts)
        try:
            return self._calls.run(
                candidate.path, lambda: all(map(os.path.lexists, paths)), deadline
            )
        except UnfinishedError:
            return True

    def _look_once(
        self, deadline: Deadline, enough: int
    ) -> Iterator[tuple[CheckpointVerdict, ...]]:
        try:
            sightings = self._calls.run(_LISTING, lambda: self._listing.list(deadline), deadline)
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
        share, newest_valid = self.share, None
        valid = judged = 0
        for index, seen in enumerate(sightings):
            if seen.refusal is None:
                verdict = self._recall(seen, share)
                if verdict is None and valid >= enough:
                    reason = f"not checked: older than {newest_valid}, which is valid"
                    verdict = CheckpointVerdict(seen.candidate, False, reason, Hindrance.UNREAD)
                elif verdict is None and judged >= self.settings.validate_max:
                    reason = f"not checked: {judged} newer ones were checked first"
                    verdict = CheckpointVerdict(seen.candidate, False, reason, Hindrance.UNREAD)
                elif verdict is None:
                    judged += 1
                    # half of what is left: an older one still gets its turn
                    is_last = index == len(sightings) - 1
                    half = deadline.share(1.0 if is_last else 0.5)
                    verdict = self._judge_apart(seen, half, share)
                if verdict.is_valid:
                    valid += 1
                    newest_valid = newest_valid or Path(verdict.candidate.path).name
                verdicts[index] = verdict
            verdicts[index] = _with_hint(verdicts[index], seen.hint)
            yield tuple(verdicts)
        paths = {seen.candidate.path for seen in sightings}
        self._verdicts = {
            path: it for path, it in list(self._verdicts.items()) if path in paths
        }  # a copy: a read that was left behind may add to it

    def _judge_apart(self, seen: Sighting, deadline: Deadline, share: Share) -> CheckpointVerdict:
        """Return the verdict, also where the storage does not answer a read of this candidate."""
        candidate = seen.candidate
        try:
            return self._calls.run(
                candidate.path, lambda: self._judge(seen, deadline, share), deadline
            )
        except UnfinishedError as error:
            return CheckpointVerdict(candidate, False, str(error), Hindrance.UNREADABLE)

    def _recall(self, seen: Sighting, share: Share) -> CheckpointVerdict | None:
        """Return the verdict on files whose bytes were read before."""
        if seen.signature is None:
            return None
        known = self._known(seen.candidate.path, _signatures(seen), share)
        return None if known is None else replace(known, candidate=seen.candidate)

    def _known(
        self, path: str, signatures: tuple[Signature, ...], share: Share
    ) -> CheckpointVerdict | None:
        """Return the verdict on these very files, if it speaks for this share."""
        known = self._verdicts.get(path)
        if known is None or known[0] != signatures:
            return None
        verdict = known[1]
        fits = not verdict.is_valid or verdict.share.is_whole or verdict.share == share
        return verdict if fits else None

    def _judge(self, seen: Sighting, deadline: Deadline, share: Share) -> CheckpointVerdict:
        candidate = seen.candidate
        try:
            if seen.tree is not None:
                return self._judge_folder(seen, deadline, share)
            verdict = self._judge_files(seen, deadline, share)
        except OSError as error:
            reason = explain_in(candidate.path, error)
            return CheckpointVerdict(candidate, False, reason, Hindrance.UNREADABLE)
        except UnfinishedError as error:
            return CheckpointVerdict(candidate, False, str(error), Hindrance.UNREADABLE)
        except DefectError as error:
            return CheckpointVerdict(candidate, False, str(error), Hindrance.DAMAGED)
        self._verdicts[candidate.path] = (_signatures(seen), verdict)
        return verdict

    def _judge_files(self, seen: Sighting, deadline: Deadline, share: Share) -> CheckpointVerdict:
        """Return the verdict on one file, or on the files of one save: the first share reads them."""
        if share.number > 0:
            reason = f"share 1 of {share.count} reads it"
            return CheckpointVerdict(seen.candidate, True, reason, share=share)
        proofs = []
        for member in (seen, *seen.others):
            candidate = member.candidate
            assert member.signature is not None, "a file was sighted with its status"
            is_main = member is seen
            try:
                with FileReader(candidate.path, deadline) as reader:
                    reader.check_unchanged(member.signature)
                    proofs.append(check_file(reader, candidate.format))
                    reader.check_unchanged(member.signature)
            except ChangedError as error:
                return CheckpointVerdict(seen.candidate, False, str(error), Hindrance.WRITING)
            except DefectError as error:
                reason = str(error) if is_main else f"{shown(candidate.tag)}: {error}"
                return CheckpointVerdict(seen.candidate, False, reason, Hindrance.DAMAGED)
        others = f"; with {', '.join(one.candidate.tag for one in seen.others)}"
        text = f"complete: {proofs[0]}" + (others if seen.others else "")
        return CheckpointVerdict(seen.candidate, True, text, share=share)

    def _judge_folder(self, seen: Sighting, deadline: Deadline, share: Share) -> CheckpointVerdict:
        candidate, settings = seen.candidate, self.settings
        path = candidate.path
        assert seen.tree is not None, "a folder was sighted with its names"
        survey = survey_folder(path, settings, deadline)
        candidate = replace(
            candidate,
            size_bytes=survey.size_bytes,
            modified_unix_s=max(candidate.modified_unix_s, survey.modified_unix_s),
            oldest_unix_s=survey.oldest_unix_s,
        )
        known = self._known(path, survey.signatures, share)
        if survey.defect is None and known is not None:
            step = known.candidate.step if known.candidate.is_step_exact else candidate.step
            return replace(known, candidate=replace(candidate, step=step))
        tree = replace(
            survey.tree(path, seen.tree.beside, deadline),
            earlier=seen.tree.earlier,
            earlier_name=seen.tree.earlier_name,
        )
        verdict = _check(
            candidate,
            lambda: check_folder(tree, survey, candidate.format, settings, share),
            share,
        )
        layout = format_of(candidate.format)
        if verdict.is_valid and layout is not None and (step := layout.step(tree)) is not None:
            verdict = replace(verdict, candidate=replace(candidate, step=step, is_step_exact=True))
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


def _check(candidate: Candidate, check: Callable[[], str], share: Share) -> CheckpointVerdict:
    try:
        return CheckpointVerdict(candidate, True, f"complete: {check()}", share=share)
    except DefectError as error:
        return CheckpointVerdict(candidate, False, str(error), Hindrance.DAMAGED)


def _with_hint(verdict: CheckpointVerdict, hint: str) -> CheckpointVerdict:
    return replace(verdict, reason=f"{verdict.reason}; {hint}") if hint else verdict


def _signatures(seen: Sighting) -> tuple[Signature, ...]:
    return tuple(one.signature for one in (seen, *seen.others) if one.signature is not None)
