"""What may be a checkpoint in the configured folder, newest first; files are only identified."""

import contextlib
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice, pairwise
from pathlib import Path, PurePath
from typing import Final

from detectors.wording import names_in_words
from rankmend.clock import Clock
from rankmend.errors import SourceError
from recovery.checkpoints.deadline import Deadline, UnfinishedError
from recovery.checkpoints.files.content import ContentIdentity, identify
from recovery.checkpoints.files.reader import (
    DefectError,
    FileReader,
    Signature,
    explain,
    signature_of,
)
from recovery.checkpoints.files.shape import joined_shape
from recovery.checkpoints.folder import glance
from recovery.checkpoints.formats.dcp import MARKER
from recovery.checkpoints.formats.format import FolderFormat
from recovery.checkpoints.formats.registry import recognise
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.names import (
    POINTER_NAMES,
    finished_name,
    has_checkpoint_suffix,
    has_optimizer,
    is_converted,
    is_copy_name,
    is_counters_name,
    is_export,
    is_ignored,
    is_save_name,
    is_weights_name,
    may_be_weights,
    name_weight,
    shown,
    slot_of,
    step_of,
    unfinished_mark,
)
from recovery.checkpoints.order import (
    CandidateEvidence,
    evidence_of,
    held_by,
    mark_written,
    newest_first,
)
from recovery.checkpoints.saves import FlatSave, gather
from recovery.checkpoints.series import SLOTS_MAX, NamePattern, find_slots, in_series, name_pattern
from recovery.checkpoints.storage_calls import StorageCalls
from recovery.messages.candidates import (
    OVERWRITTEN_FOLDERS,
    Candidate,
    CheckpointFormat,
    CheckpointSettings,
    Hindrance,
    Holds,
    Shape,
)

_SHOWN_MAX = 3

_POINTER_BYTES_MAX: Final = 4096
_POINTER_TEXT_MAX: Final = 255
_LINK_TEXT_MAX: Final = 400
_METADATA_BYTES_MAX: Final = 1 << 20  # read for a step in each listing; a larger one only once
# Where Accelerate and Lightning put their checkpoints by themselves, and scripts theirs.
_CONTAINER: Final = re.compile(
    r"checkpoints?|ckpts?|lightning_logs|version_[0-9]+|weights|saved_models|snapshots"
)
_CONTAINERS_DEEP: Final = 3
_TO_USE: Final = (
    "a model to be used, by its name and files; --checkpoint-name takes it all the same"
)
_UNKNOWN_MAX: Final = 100  # names that are remembered
_STILL_S: Final = 60.0  # a folder changed longer ago has shown its change in its time
_IDENTIFIED_MAX: Final = 4  # files of a folder whose content is looked at
_NO_FILE_OF_OURS: Final = frozenset({CheckpointFormat.UNKNOWN, CheckpointFormat.PICKLE})

_Identified = tuple[Signature, ContentIdentity]
_Glance = tuple[Tree, FolderFormat | None, int | None, Shape]
_Glanced = tuple[tuple[int, int], Tree, FolderFormat | None, int | None, Shape]


def describe_unknown(folder: str, names: Sequence[str]) -> str:
    """Return the advice about files that are named like checkpoints, in a form that rankmend does not know."""
    are, they = ("are", "they are checkpoints") if len(names) > 1 else ("is", "it is one")
    like = "checkpoints" if len(names) > 1 else "a checkpoint"
    return (
        f"{folder}: {names_in_words(names, _SHOWN_MAX)} {are} named like {like}, but in no format that rankmend knows, so no restart "
        f"begins from there. If {they}, save into a folder for each step, with a file that you write last, and name that file with "
        "--checkpoint-marker: then any format will do"
    )


@dataclass(frozen=True, slots=True)
class Sighting:
    """A candidate as the listing shows it."""

    candidate: Candidate
    signature: Signature | None  # of a file
    refusal: str | None = None  # why there is nothing to read
    hindrance: Hindrance | None = None  # of the refusal
    hint: str = ""  # the pointer that names it
    tree: Tree | None = None  # the top level of a folder
    others: tuple["Sighting", ...] = ()  # files of the same save


class Listing:
    """Lists the folder again and again; what has not changed is not read again."""

    def __init__(
        self, folder: Path, settings: CheckpointSettings, clock: Clock, calls: StorageCalls
    ) -> None:
        self.folder = folder
        self._settings = settings
        self._clock = clock
        self._calls = calls
        self._identities: dict[str, _Identified] = {}
        self._glances: dict[str, _Glanced] = {}
        self._known_identities: dict[str, _Identified] = {}
        self._known_glances: dict[str, _Glanced] = {}
        self._slots: set[NamePattern] = set()  # seen to be written in turn
        self._under_way: list[str] = []  # paths of which only a temporary file is there
        self.restored: Mapping[str, float] = {}
        """What ranks have restored, by path, and when it was saved."""
        self.written: Callable[[], Collection[str]] = frozenset
        """Returns the paths that ranks of the job were seen writing."""
        self.evidence: dict[str, CandidateEvidence] = {}
        """What speaks for and against each candidate of the last call, by path."""
        self.unknown: tuple[str, ...] = ()
        """Names of files that the last call left out by their content alone: a script may save in a form of its own."""

    def list(self, deadline: Deadline) -> list[Sighting]:
        """Return what may be a checkpoint. Raises SourceError when the folder can't be listed."""
        self._known_identities, self._identities = self._identities, {}
        self._known_glances, self._glances = self._glances, {}
        self.unknown, self.evidence, self._under_way = (), {}, []
        try:
            if (itself := self._sight_itself(deadline)) is not None:
                return [itself]
            sightings = list(self._list(self.folder, deadline, 0))
        except OSError as error:
            raise SourceError(
                f"checkpoint folder {self.folder} can't be read: {error.strerror or error}"
            ) from error
        saves = _join_saves(sightings, self._settings.world_size, self._under_way)
        saves = _without_exports(saves)
        found = list(self._marked(self._without_slot_numbers(saves)))
        self.evidence = evidence_of([seen.candidate for seen in found], self._slots, self.restored)
        return newest_first(
            _with_earlier(found), lambda seen: seen.candidate, self._slots, self.restored
        )

    def _marked(self, sightings: Iterable[Sighting]) -> Iterator[Sighting]:
        """Yield the sightings, those marked that the ranks write."""
        listed = list(sightings)
        candidates = mark_written((seen.candidate for seen in listed), self.written())
        for seen, candidate in zip(listed, candidates, strict=True):
            yield seen if candidate is seen.candidate else replace(seen, candidate=candidate)

    def _without_slot_numbers(self, sightings: Sequence[Sighting]) -> Iterator[Sighting]:
        """Yield the sightings, those that are overwritten in turn without their number.

        A file overwritten in a folder leaves the folder's time: only those that are dated by their files count.
        """
        self._slots |= find_slots(
            seen.candidate for seen in sightings if seen.signature or seen.candidate.oldest_unix_s
        )
        for seen in sightings:
            item = seen.candidate
            is_slot = name_pattern(item) in self._slots and not item.is_step_exact
            yield replace(seen, candidate=replace(item, step=None)) if is_slot else seen

    def _sight_itself(self, deadline: Deadline) -> Sighting | None:
        """Return the configured folder where it is a checkpoint and holds none."""
        path, marker = self.folder, self._settings.marker
        if marker is not None:
            is_itself = (path / marker).is_file()
            return (
                self._sight_folder(path, path.stat(), frozenset(), deadline) if is_itself else None
            )
        layout = recognise(glance(str(path), frozenset(), deadline))
        if layout is None:
            return None
        is_certain = layout.format in {CheckpointFormat.DCP, CheckpointFormat.NVRX_LOCAL}
        if not is_certain and step_of(path.name) is None:
            return None
        return self._sight_folder(path, path.stat(), frozenset(), deadline)

    def _list(self, folder: Path, deadline: Deadline, depth: int) -> Iterator[Sighting]:
        settings = self._settings
        with os.scandir(folder) as scan:
            entries = list(islice(scan, settings.entries_max + 1))
        names = frozenset(entry.name for entry in entries)
        are_weights_exported = is_export(names)
        sightings: list[Sighting] = []
        pointers = []
        for entry in entries[: settings.entries_max]:
            deadline.check()
            if is_ignored(entry.name) or (are_weights_exported and is_weights_name(entry.name)):
                part = finished_name(entry.name)
                if part is not None and part not in names:
                    self._under_way.append(f"{folder}/{part}")
                continue
            if entry.name in POINTER_NAMES and (text := _read_pointer(entry, deadline)):
                pointers.append((entry.name, text))
            elif not entry.name.isprintable():  # nor fit for the journal
                refusal = "its name is not printable UTF-8"
                sightings.append(_refused(Path(entry.path), None, refusal, Hindrance.DAMAGED))
            elif is_wanted(entry.name, settings.names) or entry.is_dir(follow_symlinks=False):
                seen = self._sight(entry, names, deadline, depth)
                if are_weights_exported and may_be_weights(entry.name):
                    seen = (one for one in seen if one.candidate.shape.holds is Holds.STATE)
                sightings += seen
        for name, text in pointers:
            sightings = _follow(folder, name, text, sightings)
        if len(entries) > settings.entries_max:
            refusal = f"only {settings.entries_max} of its entries were checked"
            sightings.append(_refused(folder, None, refusal, Hindrance.UNREAD))
        yield from sightings

    def _sight(
        self, entry: os.DirEntry[str], beside: frozenset[str], deadline: Deadline, depth: int
    ) -> Iterator[Sighting]:
        """Yield the entry as a candidate, or what lies in it; nothing where it is neither."""
        path = Path(entry.path)
        is_named = has_checkpoint_suffix(entry.name) or step_of(entry.name) is not None
        status = None
        try:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                yield _refused(path, status, *_describe_link(path))
                return
            if stat.S_ISDIR(status.st_mode):
                seen = self._sight_folder(path, status, beside, deadline)
                if seen is not None:
                    yield seen
                elif _CONTAINER.fullmatch(entry.name) and depth < _CONTAINERS_DEEP:
                    yield from self._list(path, deadline, depth + 1)
                return
            if stat.S_ISREG(status.st_mode):
                if (marker := unfinished_mark(entry.name, beside)) is not None:
                    refusal = f"the save did not finish: {shown(marker)} lies beside it"
                    yield _refused(path, status, refusal, Hindrance.DAMAGED)
                    return
                seen = self._sight_file(path, status, deadline)
                if seen is not None:
                    yield seen
                return
            refusal, hindrance = "not a regular file", Hindrance.DAMAGED
        except OSError as error:
            refusal, hindrance = explain(error), Hindrance.UNREADABLE
        except DefectError as error:
            refusal, hindrance = str(error), Hindrance.DAMAGED
        except UnfinishedError as error:
            if deadline.left_s() <= 0:
                raise
            refusal, hindrance = str(error), Hindrance.UNREADABLE  # of this one alone
        if is_named:
            yield _refused(path, status, refusal, hindrance)

    def _sight_file(
        self, path: Path, status: os.stat_result, deadline: Deadline
    ) -> Sighting | None:
        if status.st_size == 0 and not _is_named_checkpoint(path.name, status):
            return None
        signature = signature_of(str(path), status)
        known = self._known_identities.get(str(path))
        if known is None or known[0] != signature:
            half = deadline.share(0.5)  # where its storage hangs, the others have their turn
            identity = self._calls.run(str(path), lambda: _identify(str(path), half), half)
            known = (signature, identity)
        self._identities[str(path)] = known
        identity = known[1]
        if identity.format in _NO_FILE_OF_OURS and not _is_named_checkpoint(path.name, status):
            if step_of(path.name) is not None or is_save_name(path.name):
                self.unknown = (*self.unknown, shown(path.name))[:_UNKNOWN_MAX]
            return None  # a log, a configuration, data
        is_side = name_weight(path.name) == 0 and identity.step is None
        is_alone = identity.shape.holds is Holds.VALUES and not self._settings.names
        if is_alone and (is_side or is_counters_name(path.name)):
            return None  # curves, predictions, arguments: no run goes on from these alone
        modified_unix_s = status.st_mtime_ns / 1e9
        candidate = Candidate(
            str(path),
            identity.step if identity.step is not None else step_of(path.name),
            identity.format,
            status.st_size,
            modified_unix_s,
            is_step_exact=identity.step is not None,
            shape=identity.shape,
        )
        return Sighting(candidate, signature)

    def _glance(self, path: Path, beside: frozenset[str], deadline: Deadline) -> _Glance:
        tree = glance(str(path), beside, deadline)
        layout = self._recognise(tree)
        return tree, layout, _early_step(layout, tree), _early_shape(layout, tree)

    def _recognise(self, tree: Tree) -> FolderFormat | None:
        layout = recognise(tree)
        is_dcp = layout is not None and layout.format is CheckpointFormat.DCP
        # Shards that a script completes with a marker of its own in the place of DCP's.
        return None if is_dcp and self._settings.marker and MARKER not in tree.files else layout

    def _sight_folder(
        self, path: Path, status: os.stat_result, beside: frozenset[str], deadline: Deadline
    ) -> Sighting | None:
        settings = self._settings
        key = (status.st_ino, status.st_mtime_ns)
        known = self._known_glances.get(str(path))
        is_still = self._clock.unix_s() - status.st_mtime > _STILL_S
        if known is None or known[0] != key or not is_still:
            half = deadline.share(0.5)
            found = self._calls.run(str(path), lambda: self._glance(path, beside, half), half)
            known = (key, *found)
        self._glances[str(path)] = known
        _key, tree, layout, step, shape = known
        tree = replace(tree, beside=beside, deadline=deadline)
        has_marker = settings.marker is not None and settings.marker in tree.files
        if layout is None and not has_marker and step_of(path.name) is None:
            return None
        if not is_wanted(path.name, settings.names):
            return None
        candidate = Candidate(
            str(path),
            step if step is not None else _step_of_folder(path.name, layout),
            CheckpointFormat.FOLDER if layout is None else layout.format,
            0,
            status.st_mtime_ns / 1e9,
            is_step_exact=step is not None,
            shape=shape,
        )
        if layout is None and not tree.files and not tree.folders:
            return Sighting(candidate, None, "an empty folder", Hindrance.DAMAGED)
        if is_converted(path.name, tree.top_files) and not (settings.names or has_marker):
            return Sighting(candidate, None, _TO_USE, Hindrance.DAMAGED)
        if _may_be_overwritten(candidate):
            candidate = _dated_by_files(candidate, tree)
        return Sighting(candidate, None, tree=tree)


def _identify(path: str, deadline: Deadline) -> ContentIdentity:
    with FileReader(path, deadline) as reader:
        return identify(reader, deadline)


def _is_named_checkpoint(name: str, status: os.stat_result) -> bool:
    """Return whether a file of no known content is a torn checkpoint by its name, and no data."""
    if not has_checkpoint_suffix(name):
        return False
    return not name.endswith(".bin") or step_of(name) is not None or status.st_size == 0


def _step_of_folder(name: str, layout: FolderFormat | None) -> int | None:
    is_numbered = layout is not None and layout.format is CheckpointFormat.ACCELERATE
    return None if is_numbered and "checkpoint_" in name else step_of(name)


def _may_be_overwritten(candidate: Candidate) -> bool:
    """Return whether a script may write this folder again: it has no number, or that of a slot."""
    if candidate.format not in OVERWRITTEN_FOLDERS or candidate.is_step_exact:
        return False
    slot = slot_of(candidate.tag)
    return candidate.step is None or (slot is not None and slot <= SLOTS_MAX)


def _dated_by_files(candidate: Candidate, tree: Tree) -> Candidate:
    """Return the candidate with the times of its files, which the folder's own doesn't tell."""
    times = []
    for name in filter(has_checkpoint_suffix, tree.top_files):
        with contextlib.suppress(FileNotFoundError):
            times.append(Path(tree.path, name).lstat().st_mtime_ns / 1e9)
    if not times:
        return candidate
    return replace(candidate, modified_unix_s=max(times), oldest_unix_s=min(times))


def _early_step(layout: FolderFormat | None, tree: Tree) -> int | None:
    """Return the step that the content holds, where little has to be read for it."""
    if layout is None:
        return None
    try:
        if MARKER in tree.files and Path(tree.path, MARKER).stat().st_size > _METADATA_BYTES_MAX:
            return None
        return layout.step(tree)
    except (DefectError, OSError):  # judging the folder finds it again, and says so
        return None


def _early_shape(layout: FolderFormat | None, tree: Tree) -> Shape:
    """Return what a folder that a script fills holds, by names and by the content of a few files."""
    if layout is None or layout.format not in OVERWRITTEN_FOLDERS:
        return Shape()
    names = tree.top_files | tree.top_folders
    if has_optimizer(names) or any("optim" in name.lower() for name in names):
        return Shape(Holds.STATE)
    shapes = []
    for name in sorted(filter(has_checkpoint_suffix, tree.top_files))[:_IDENTIFIED_MAX]:
        try:
            with tree.open(name) as reader:
                shapes.append(identify(reader, tree.deadline).shape)
        except (DefectError, OSError):
            continue
    holds = joined_shape(shapes).holds
    # A numbered one that lacks the optimizer may be torn: it stays in its series.
    is_side = holds is Holds.VALUES and name_weight(tree.name) == 0  # `samples_step_100/`
    is_known = holds is Holds.STATE or is_side or step_of(tree.name) is None
    return Shape(holds) if is_known else Shape()


def is_wanted(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a candidate's name fits one of the patterns, if there are any, and none that leaves out."""
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    refused = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    if any(fnmatchcase(name, pattern) for pattern in refused):
        return False
    return not wanted or any(fnmatchcase(name, pattern) for pattern in wanted)


def _describe_link(path: Path) -> tuple[str, Hindrance]:
    target = Path(os.path.realpath(path))
    if not os.path.lexists(target):
        reason = f"a link that leads nowhere: {shown(str(target), _LINK_TEXT_MAX)}"
        return reason, Hindrance.MISSING
    if target.parent != Path(os.path.realpath(path.parent)):
        reason = f"a link that points outside the folder: {shown(str(target), _LINK_TEXT_MAX)}"
        return reason, Hindrance.DAMAGED
    return f"a link to {shown(target.name)}, which is checked itself", Hindrance.ALIAS


def _refused(
    path: Path, status: os.stat_result | None, refusal: str, hindrance: Hindrance
) -> Sighting:
    """Return a sighting that is reported and not read; its path is made printable for a person."""
    path = path.with_name(shown(path.name)) if not path.name.isprintable() else path
    size_bytes = status.st_size if status else 0
    modified_unix_s = status.st_mtime_ns / 1e9 if status else 0.0
    step = step_of(path.name)
    candidate = Candidate(str(path), step, CheckpointFormat.UNKNOWN, size_bytes, modified_unix_s)
    return Sighting(candidate, None, refusal, hindrance)


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


def _follow(root: Path, pointer: str, text: str, sightings: list[Sighting]) -> list[Sighting]:
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


def _without_exports(sightings: list[Sighting]) -> list[Sighting]:
    """Return the sightings, models to be used refused where the numbered folders of the run's states lie here.

    Where all of these are torn, or in no form that is known here, a person decides: weights alone would lose the optimizer's state.
    """
    folders = [seen for seen in sightings if seen.tree is not None and _is_numbered(seen)]
    exports = {seen.candidate.path for seen in folders if _is_model_to_use(seen)}
    others = [seen for seen in folders if seen.candidate.path not in exports]
    others += [
        seen for seen in sightings if _is_numbered(seen) and seen.hindrance is Hindrance.MISSING
    ]
    states = [seen for seen in others if _is_state(seen)]
    if not exports or not states:
        return sightings
    patterns = {name_pattern(seen.candidate) for seen in others}
    refusal = (
        f"a model to be used: the run's states are folders such as {shown(states[0].candidate.tag)}"
    )
    return [
        replace(seen, refusal=refusal, hindrance=Hindrance.DAMAGED)
        if seen.candidate.path in exports and name_pattern(seen.candidate) not in patterns
        else seen
        for seen in sightings
    ]


def _is_numbered(seen: Sighting) -> bool:
    return step_of(seen.candidate.tag) is not None


def _is_model_to_use(seen: Sighting) -> bool:
    is_plain = seen.candidate.format in OVERWRITTEN_FOLDERS
    return is_plain and seen.tree is not None and is_export(seen.tree.top_files)


def _is_state(seen: Sighting) -> bool:
    """Return whether the folder may be a run's state: of a framework's format, with folders that nobody knows, or named by a pointer."""
    if seen.hindrance is Hindrance.MISSING:
        return True
    is_known = seen.candidate.format is not CheckpointFormat.FOLDER
    may_be = is_known or (seen.tree is not None and bool(seen.tree.top_folders))
    return (
        may_be and held_by(seen.candidate) is Holds.STATE and not is_copy_name(seen.candidate.tag)
    )


def _join_saves(
    sightings: list[Sighting], world_size: int, under_way: Collection[str]
) -> list[Sighting]:
    """Return the sightings with the files of one save as one. ``under_way``: paths that are temporary files yet."""
    files = {seen.candidate.path: seen for seen in sightings if seen.signature is not None}
    saves = {
        save.main.path: save
        for save in gather([seen.candidate for seen in files.values()], world_size, under_way)
    }
    swallowed = {other.path for save in saves.values() for other in save.others}
    retained = []
    for seen in sightings:
        save = saves.get(seen.candidate.path)
        if save is None:
            retained += [] if seen.candidate.path in swallowed else [seen]
            continue
        retained.append(
            replace(
                seen,
                candidate=_whole(save),
                refusal=save.defect,
                hindrance=Hindrance.DAMAGED if save.defect else None,
                others=tuple(files[other.path] for other in save.others),
            )
        )
    return retained


def _whole(save: FlatSave) -> Candidate:
    members = (save.main, *save.others)
    return replace(
        save.main,
        size_bytes=sum(member.size_bytes for member in members),
        modified_unix_s=max(member.modified_unix_s for member in members),
        parts=tuple(member.path for member in save.others),
        # One that lacks a file stays in its series, whatever the rest holds.
        shape=Shape() if save.defect else joined_shape(member.shape for member in members),
    )


def _with_earlier(sightings: list[Sighting]) -> list[Sighting]:
    """Return the sightings, each folder with the names of the save before it."""
    trees = {seen.candidate.path: seen.tree for seen in sightings if seen.tree is not None}
    series: dict[NamePattern, list[Candidate]] = defaultdict(list)
    for seen in sightings:
        if seen.tree is not None:  # a torn one may look like another format
            series[name_pattern(seen.candidate)].append(seen.candidate)
    for members in series.values():
        for before, after in pairwise(member.path for member in in_series(members)):
            names = trees[before].top_files
            trees[after] = replace(trees[after], earlier=names, earlier_path=before)
    return [replace(seen, tree=trees.get(seen.candidate.path)) for seen in sightings]
