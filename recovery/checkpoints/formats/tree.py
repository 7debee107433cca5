"""A checkpoint folder as its formats see it: names and sizes at once, content on request."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.files.pickle_stream import torch_content
from recovery.checkpoints.files.reader import DefectError, FileReader, Signature
from recovery.checkpoints.names import shown, step_of

_JSON_BYTES_MAX: Final = 64 << 20  # trainer_state.json keeps the whole log history


@dataclass(frozen=True)
class Tree:
    """One checkpoint folder. Only the names of its top level are known before it is surveyed."""

    path: str
    files: Mapping[str, Signature | None]  # by their names relative to the folder
    folders: frozenset[str]  # relative names
    beside: frozenset[str]  # names in the directory that holds the folder
    deadline: Deadline
    earlier: frozenset[str] = frozenset()  # files of the save before, as far as they are compared
    earlier_path: str = ""  # its folder
    parsed: dict[str, Any] = field(default_factory=dict)  # what its format has read, for later

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @cached_property
    def top_files(self) -> frozenset[str]:
        return frozenset(name for name in self.files if "/" not in name)

    @cached_property
    def top_folders(self) -> frozenset[str]:
        return frozenset(name for name in self.folders if "/" not in name)

    def matching(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        """Return the matches of whole top-level file names."""
        found = (pattern.fullmatch(name) for name in sorted(self.top_files))
        return [match for match in found if match is not None]

    def under(self, folder: str) -> "Tree":
        """Return the part of the tree in one of its folders."""
        start = f"{folder}/"
        return replace(
            self,
            path=f"{self.path}/{folder}",
            files={k.removeprefix(start): v for k, v in self.files.items() if k.startswith(start)},
            folders=frozenset(
                name.removeprefix(start) for name in self.folders if name.startswith(start)
            ),
            beside=self.top_files | self.top_folders,
            earlier=frozenset(),
            parsed={},
        )

    def missing_since_earlier(self) -> list[str]:
        """Return which files the save before has and this one lacks.

        A step in a file's name is the one of its folder: `step_10/model_10.pt`. Another number is not: `step_1/rank1.pt`.
        """
        numbers = (step_of(self.earlier_path.rpartition("/")[2]), step_of(self.name))
        lacking = self.earlier - self.files.keys()
        if None in numbers:
            return sorted(lacking)
        before, now = (str(number) for number in numbers)
        number = re.compile(rf"(?<![0-9])0*{before}(?![0-9])")
        renamed = {name: number.sub(now, name) for name in lacking}
        awaited = {name if new in self.earlier else new for name, new in renamed.items()}
        return sorted(awaited - self.files.keys())

    @contextmanager
    def open(self, name: str) -> Iterator[FileReader]:
        """Open one file; a defect or an error in it names the file."""
        try:
            with FileReader(f"{self.path}/{name}", self.deadline) as reader:
                yield reader
        except DefectError as error:
            raise DefectError(f"{shown(name)}: {error}") from error
        except OSError as error:
            if isinstance(error, FileNotFoundError) and name not in self.files:
                raise DefectError(f"{shown(name)} is missing") from error
            raise OSError(error.errno, error.strerror, f"{self.path}/{name}") from error

    def require(self, *names: str) -> None:
        """Raise unless all these files are there and not empty."""
        for name in names:
            if name not in self.files:
                raise DefectError(f"{shown(name)} is missing")
            signature = self.files[name]
            if signature is not None and signature[2] == 0:
                raise DefectError(f"{shown(name)} is empty")

    def json(self, name: str) -> dict[str, Any]:
        """Return the object in a JSON file."""
        with self.open(name) as reader:
            if reader.size_bytes > _JSON_BYTES_MAX:
                raise DefectError(f"{reader.size_bytes} bytes of JSON, more than {_JSON_BYTES_MAX}")
            try:
                value = json.loads(reader.read(0, reader.size_bytes))
            except (ValueError, RecursionError) as error:
                raise DefectError("damaged: no complete JSON") from error
            if not isinstance(value, dict):
                raise DefectError("its JSON is not an object")
            return value

    def torch_content(self, name: str) -> Any:
        """Return the plain values of a torch.save file, its tensors opaque."""
        with self.open(name) as reader:
            return torch_content(reader, self.deadline)


def require_whole_range(numbers: set[int], what: str, count: int | None = None) -> None:
    """Raise unless the numbers run from 0 without a gap, and are ``count`` where that is known."""
    expected = max(numbers, default=-1) + 1 if count is None else count
    missing = next((number for number in range(expected) if number not in numbers), None)
    if missing is not None:
        raise DefectError(f"{what.format(missing)} is missing")
