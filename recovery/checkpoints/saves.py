"""Files of one save: `model_10.pt` and `optimizer_10.pt`, `G_10.pth` and `D_10.pth`, `step_10_rank_0.pt` to `_3.pt`. Pure.

Files belong together when their names differ only in what they hold (a role), or in a rank or a part. Roles are known
words; any other word counts as one where the files of a number differ in it alone, hold the same kind of thing and have
other tensors: a copy (`best_10.pt` beside `step_10.pt`) has the same ones. The path of a save is its model's file, the
generator's, or that of the first rank. Which other files a save has is known from the save before, from a number of
parts in the name (`3of8`, `world_size_8`), or from how many ranks the job has.

A last number without a word (`step20.0.pt` to `step20.3.pt`) may count anything: it is a rank where the numbers go from 0 on
without a gap and all files of a save tell one step in their content, which differs from save to save. Of a first save there
have to be as many as the job has ranks.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from recovery.checkpoints.names import Piece, is_copy_name, piece_of, plain_rank_of
from recovery.messages.candidates import Candidate, CheckpointFormat, Holds

_MODEL: Final = frozenset({"model", "weights", "net", "network", "params", "module"})
_OTHERS: Final = frozenset(
    {"optimizer", "optim", "opt", "scheduler", "sched", "scaler", "rng", "ema", "sampler"}
)
_OPTIMIZER: Final = frozenset({"optimizer", "optim", "opt"})
_FILLERS: Final = frozenset({"lr", "state", "states", "random"})
# Of models that are trained together, the one that is the result first.
_TOGETHER: Final = (
    *("g", "gen", "generator", "netg", "actor", "policy", "pi", "encoder", "enc"),
    *("decoder", "dec", "critic", "value", "vf", "qf", "d", "dis", "disc", "discriminator", "netd"),
)
# Of image domains: CycleGAN's `net_G_A`, `G_AB` and `netG_X2Y`.
_DIRECTIONS: Final = frozenset(
    {
        *("a", "b", "a2b", "b2a", "ab", "ba", "atob", "btoa"),
        *("x", "y", "x2y", "y2x", "xy", "yx", "xtoy", "ytox"),
    }
)
_WORDS: Final = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z](?:2|to)[A-Z](?![A-Za-z0-9])|(?<![A-Za-z0-9])[a-z]2[a-z](?![A-Za-z0-9])|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+|#"
)
_NUMBER: Final = re.compile(r"[0-9]+")
_ALIKE: Final = 0.02  # of the elements: counters that are tensors don't make a copy another kind
_PIECES_MAX: Final = 100_000
_RANK_DIGITS_MAX: Final = 6
_RANKS_S: Final = 30.0  # between the files of two ranks; a rotation is as old as a save
_ONE_SAVE_S: Final = 3600.0  # between its first and last file where no number tells saves apart

Key = tuple[str, ...]

_TRAINED: Final = frozenset({Holds.STATE, Holds.MODEL})


@dataclass(frozen=True, slots=True)
class FlatSave:
    """The files of one save that lie in one folder."""

    main: Candidate  # the model's file, or that of the first rank
    others: tuple[Candidate, ...]
    labels: frozenset[str]  # of all files: "" is the model, others such as "optimizer", "rank 3"
    series: Key  # equal for the saves that can be compared
    has_ranks: bool = False  # each rank has a file of its own
    defect: str | None = None  # why this is no whole save


@dataclass(frozen=True, slots=True)
class _File:
    candidate: Candidate
    piece: Piece
    role: str
    key: Key

    @property
    def label(self) -> str:
        if self.piece.number is None:
            return self.role
        what = "rank" if self.piece.is_rank else "part"
        own = f"{what} {self.piece.number}"
        return f"{self.role} of {own}" if self.role else own


def gather(
    candidates: Sequence[Candidate], world_size: int = 0, under_way: Collection[str] = ()
) -> list[FlatSave]:
    """Return the saves that consist of several files, or that lack some.

    ``world_size``: ranks of the job; 0: not known. ``under_way``: paths of files that are not finished.
    """
    unfinished = dict(map(_unfinished, under_way))
    ranks = _plain_ranks(candidates, world_size) | _ranks_behind(candidates)
    pieces = [ranks.get(candidate.path) or piece_of(candidate.tag) for candidate in candidates]
    files = list(map(_file_of, candidates, pieces))
    files = _beside_other_names(_beside_whole_models(files))
    groups: dict[Key, list[_File]] = defaultdict(list)
    for file in files:
        groups[file.key].append(file)
    retained = {key: whole for key, group in groups.items() if (whole := _one_save(group))}
    joined = {
        file.candidate.path for group in retained.values() if len(group) > 1 for file in group
    }
    by_word = _by_any_word(file for file in files if file.candidate.path not in joined)
    regrouped = {file.candidate.path for group in by_word.values() for file in group}
    series: dict[Key, list[list[_File]]] = defaultdict(list)
    for key, group in (*retained.items(), *by_word.items()):
        if key in by_word or group[0].candidate.path not in regrouped:
            series[_series(key)].append(group)
    saves: list[FlatSave] = []
    for name, members in series.items():
        is_torn = any(group[0].key in unfinished for group in members)
        if is_torn or any(len(group) > 1 or _is_apart(group[0]) for group in members):
            saves += _compared(name, sorted(members, key=_order), world_size, unfinished)
    return saves


def _unfinished(path: str) -> tuple[Key, str]:
    """Return the save that a file belongs to that is not finished, and its name."""
    candidate = Candidate(path, None, CheckpointFormat.UNKNOWN, 0, 0.0)
    return _file_of(candidate, piece_of(candidate.tag)).key, candidate.tag


def _plain_ranks(candidates: Iterable[Candidate], world_size: int) -> dict[str, Piece]:
    """Return by path the ranks that names tell by a last number alone."""
    series: dict[Key, dict[str, dict[int, tuple[Candidate, Piece]]]] = defaultdict(dict)
    for candidate in candidates:
        piece = plain_rank_of(candidate.tag)
        if piece is not None and piece.number is not None:
            saves = series[candidate.directory, _NUMBER.sub("0", piece.shared)]
            saves.setdefault(piece.shared, {})[piece.number] = (candidate, piece)
    found = {}
    for saves in series.values():
        steps = [
            {file.step if file.is_step_exact else None for file, _piece in files.values()}
            for files in saves.values()
        ]
        reported = {step for of_save in steps for step in of_save}
        counts = {len(files) for files in saves.values() if max(files) == len(files) - 1}
        is_one_step = all(len(of_save) == 1 for of_save in steps) and len(reported) == len(steps)
        is_known = len(steps) > 1 or world_size in counts
        if max(counts, default=0) > 1 and is_one_step and is_known and None not in reported:
            pairs = (pair for files in saves.values() for pair in files.values())
            found.update({item.path: piece for item, piece in pairs})
    return found


def _ranks_behind(candidates: Iterable[Candidate]) -> dict[str, Piece]:
    """Return by path the ranks of files as AudioCraft's: `checkpoint.th` is rank 0's, `checkpoint.th.1` the next one's.

    One that is older is no rank's: a rotation has renamed the save before to it.
    """
    by_path = {candidate.path: candidate for candidate in candidates}
    found: dict[str, Piece] = {}
    for candidate in by_path.values():
        base = by_path.get(candidate.path.rpartition(".")[0])
        digits = candidate.tag.rpartition(".")[2]
        if base is None or not digits.isdecimal() or len(digits) > _RANK_DIGITS_MAX:
            continue
        steps = {file.step for file in (base, candidate) if file.is_step_exact}
        if candidate.modified_unix_s >= base.modified_unix_s - _RANKS_S and len(steps) < 2:
            found[base.path] = Piece(base.tag, 0, None, is_rank=True)
            found[candidate.path] = Piece(base.tag, int(digits), None, is_rank=True)
    return found


def _file_of(candidate: Candidate, piece: Piece) -> _File:
    stem = piece.shared.rpartition(".")[0] or piece.shared
    words = [word.lower() for word in _WORDS.findall(stem)]
    roles = [word for word in words if word in _OTHERS or word in _TOGETHER]
    if any(word in _TOGETHER for word in roles):
        roles = [word for word in words if word in roles or word in _DIRECTIONS]
    left = [word for word in words if word not in _MODEL | _FILLERS and word not in roles]
    if piece.more:
        roles.append(piece.more)
    return _File(candidate, piece, " ".join(roles), (candidate.directory, *left))


def _beside_whole_models(files: list[_File]) -> list[_File]:
    """Return the files, the optimizers of single ranks in the save of the one model that lies beside them."""
    models = {file.key for file in files if not _is_other(file)}
    found = []
    for file in files:
        whole = tuple(word for word in file.key if word != "#")
        is_beside = _is_other(file) and file.piece.number is not None and whole in models
        found.append(replace(file, key=whole) if is_beside and file.key not in models else file)
    return found


def _beside_other_names(files: list[_File]) -> list[_File]:
    """Return the files, optimizers in the save of the models of their numbers, where only one kind of these has such numbers.

    open_lm: `epoch_3.pt` is the model alone, `optimizer_3.pt` its optimizer.
    """
    models: dict[Key, set[Key]] = defaultdict(set)
    for file in files:
        if not file.role and file.piece.number is None:
            models[_numbers(file)].add(file.key)
    holds = {file.key: file.candidate.shape.holds for file in files if not file.role}
    found = []
    for file in files:
        keys = models[_numbers(file)]
        is_alone = file.role in _OPTIMIZER and file.candidate.shape.holds is Holds.OPTIMIZER
        key = next(iter(keys)) if is_alone and len(keys) == 1 and file.key not in holds else None
        is_its = key is not None and len(key) > len(_numbers(file)) and holds[key] is Holds.MODEL
        found.append(replace(file, key=key) if key is not None and is_its else file)
    return found


def _numbers(file: _File) -> Key:
    """Return the folder and the numbers of a key."""
    return (file.key[0], *(word for word in file.key[1:] if word.isdigit()))


def _is_other(file: _File) -> bool:
    return file.role.split(" ")[0] in _OTHERS


def _one_save(group: list[_File]) -> list[_File]:
    """Return the files of the group that belong to one save; none where nobody knows which do."""
    has_number = any(word.isdigit() for word in group[0].key[1:])
    if not has_number and len(group) > 1:
        if any(not file.role for file in group):  # a part of a model beside all of it
            group = [file for file in group if file.role.split(" ")[0] not in _TOGETHER]
        times = [file.candidate.modified_unix_s for file in group]
        steps = {file.candidate.step for file in group if file.candidate.is_step_exact}
        is_numbered = any(file.piece.number is not None for file in group)
        if is_numbered and len(steps) != 1 and max(times) - min(times) > _ONE_SAVE_S:
            return []
        if any(_is_short(file) for file in group):
            return []
    labels = [file.label for file in group]
    return group if len(set(labels)) == len(labels) <= _PIECES_MAX else []


def _is_short(file: _File) -> bool:
    """Return whether its rank is told by one letter alone, which may count rounds as well."""
    return file.piece.is_rank and re.search(r"(?i)(?<![a-z])r[0-9]", file.candidate.tag) is not None


def _is_apart(file: _File) -> bool:
    """Return whether a file alone in its save is known to lack others: an optimizer's, or one of several by its name."""
    first = file.role.split(" ")[0]
    is_of_several = file.piece.number is not None and (file.piece.count or 0) > 1
    return is_of_several or (file.piece.number is None and first in _OTHERS)


def _by_any_word(files: Iterable[_File]) -> dict[Key, list[_File]]:
    """Return the saves whose files differ in one word of any kind."""
    by_key: dict[Key, list[tuple[str, _File]]] = defaultdict(list)
    for file in files:
        words = file.key[1:]
        if file.role or not any(map(str.isdigit, words)) or is_copy_name(file.candidate.tag):
            continue
        for at, word in enumerate(words):
            if not word.isdigit() and word != "#":
                key = (file.key[0], *words[:at], "*", *words[at + 1 :])
                by_key[key].append((word, file))
    series: dict[Key, list[frozenset[str]]] = defaultdict(list)
    for key, group in by_key.items():
        series[_series(key)].append(frozenset(word for word, _file in group))
    found: dict[Key, list[_File]] = {}
    for key, group in by_key.items():
        words_of = frozenset(word for word, _file in group)
        alike = [item for item in series[_series(key)] if len(item) > 1]
        most = max(alike, key=len, default=frozenset[str]())
        # One may lack some: the newest, whose save was cut short.
        is_usual = words_of <= most and all(item <= most for item in alike)
        is_usual = is_usual and sum(item != most for item in alike) <= 1
        if is_usual and _are_parts([file for _word, file in group]):
            found[key] = [_File(file.candidate, file.piece, word, key) for word, file in group]
    return found


def _are_parts(files: Sequence[_File]) -> bool:
    shapes = [file.candidate.shape for file in files]
    if len(files) < 2:
        return True
    if len({shape.holds for shape in shapes}) > 1 or shapes[0].holds not in _TRAINED:
        return False
    elements = sorted(shape.elements for shape in shapes)
    return all(after > before * (1 + _ALIKE) for before, after in pairwise(elements))


def _series(key: Key) -> Key:
    return tuple(_NUMBER.sub("0", word) for word in key)


def _order(group: Sequence[_File]) -> tuple[int, float]:
    steps = [file.candidate.step for file in group if file.candidate.step is not None]
    numbers = [int(word[:18]) for word in group[0].key[1:] if word.isdigit()]
    number = max(steps) if steps else numbers[-1] if numbers else -1
    return number, max(file.candidate.modified_unix_s for file in group)


def _compared(
    series: Key, groups: Sequence[list[_File]], world_size: int, unfinished: Mapping[Key, str]
) -> list[FlatSave]:
    """Return the saves of one series, in its order, each compared with the newest whole one before it."""
    saves: list[FlatSave] = []
    sets = [frozenset(file.label for file in group) for group in groups]
    usual = max(sets, key=len)
    before: FlatSave | None = None
    for unsorted in groups:
        group = sorted(unsorted, key=_place)
        main, *others = (file.candidate for file in group)
        labels = frozenset(file.label for file in group)
        expected, beside = labels, ""
        if before is not None:
            expected, beside = before.labels, before.main.tag
        elif len(group) == 1:  # alone, where each other save has several
            expected = usual
        defect = _mixed(group)
        if (part := unfinished.get(group[0].key)) is not None:
            defect = f"the save did not finish: {part} is a temporary file yet"
        if sets.count(labels) == 1 or len(labels) < len(usual):
            defect = defect or _lacking(group, expected, beside, world_size)
        has_ranks = len(group) > 1 and all(file.piece.is_rank for file in group)
        save = FlatSave(main, tuple(others), labels, series, has_ranks, defect)
        before = before if defect else save
        saves.append(save)
    return saves


def _place(file: _File) -> tuple[bool, int, int, int, str]:
    """Return the place of a file in its save: the path of the save is that of the first one."""
    first = file.role.split(" ")[0]
    together = _TOGETHER.index(first) if first in _TOGETHER else 0
    number = file.piece.number or 0
    return (first in _OTHERS, together, number, -file.candidate.shape.elements, file.candidate.tag)


def _mixed(group: Sequence[_File]) -> str | None:
    """Return why the files are not of one save."""
    main = group[0].candidate
    if all(map(_is_other, group)) and main.shape.holds is not Holds.STATE:
        return f"no model lies beside {main.tag}"
    for other in (file.candidate for file in group[1:]):
        is_exact = main.is_step_exact and other.is_step_exact
        if is_exact and main.step != other.step:
            return f"it is of step {main.step}, {other.tag} of step {other.step}"
    return None


def _lacking(
    group: Sequence[_File], expected: frozenset[str], beside: str, world_size: int
) -> str | None:
    """Return which file is not there. ``expected``: the labels of the save before, whose file is ``beside``."""
    labels = {file.label for file in group}
    numbered = [file.piece for file in group if file.piece.number is not None]
    if numbered:
        numbers = {piece.number for piece in numbered}
        what = "rank" if numbered[0].is_rank else "part"
        count = max((piece.count or 0 for piece in numbered), default=0)
        if not count and what == "rank" and len(numbers) == world_size:
            count = world_size
        begin = 0 if 0 in numbers or what == "rank" else 1
        if what == "rank" and count and count in numbers and 0 not in numbers:
            begin = 1
        end = begin + count if count else max(number or 0 for number in numbers) + 1
        wanted = range(begin, min(end, begin + _PIECES_MAX))
        missing = next((number for number in wanted if number not in numbers), None)
        if missing is not None and (count or missing < max(number or 0 for number in numbers)):
            of = f" of {count}" if count else ""
            return f"the file of {what} {missing}{of} is missing"
        if count:  # the save before may be of another number of ranks
            roles = {file.role for file in group if file.piece.number is not None}
            each = frozenset(
                _File(group[0].candidate, Piece("", number, count, what == "rank"), role, ()).label
                for role in roles
                for number in wanted
            )
            expected = each | {label for label in expected if f"{what} " not in label}
    if group[0].candidate.shape.holds is Holds.STATE:  # whole by itself; averages may come later
        expected -= {"ema"}
    lacking = sorted(expected - labels)
    if lacking:
        others = f"beside {beside}" if beside else "with each other save"
        return f"no {lacking[0] or 'model'} file lies beside it, as {others}"
    return None
