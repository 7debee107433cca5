"""What a row of the GPU report is, and how an area tells its rows.

An area runs as a process of its own, since a GPU that misbehaves may take it along. It prints a JSON line for each row as
soon as the row is done, so that what was proved before a crash or a time-out stays proved.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, TextIO

WHY_CHARACTERS_MAX = 600
_OUT_OF_MEMORY = "OutOfMemoryError"  # PyTorch's, which this module doesn't import


class Outcome(str, Enum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"


class NotTriedError(Exception):
    """The row can't be tried on this machine; says why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One claim about rankmend on a GPU. ``figures``: name with its unit, and the value as measured."""

    id: str  # AREA.NAME
    claim: str
    outcome: Outcome
    figures: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""  # failed or not tried: the reason; passed: what a reader must know
    commit: str = ""  # of rankmend, when it was tried
    tried_on: str = ""  # GPU, driver and day

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Row":
        """Read a row that an area has told. Raises ValueError, KeyError or TypeError."""
        read = json.loads(line)
        return cls(**{**read, "outcome": Outcome(read["outcome"])})


class Trial:
    """A row under trial: takes figures and failed checks."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        self.failures: list[str] = []
        self.notes: list[str] = []

    def figure(self, name: str, value: object) -> None:
        """Keep a figure; a float is rounded to four significant digits."""
        self.figures[name] = float(f"{value:.4g}") if isinstance(value, float) else value

    def check(self, is_so: object, otherwise: str) -> None:
        """Fail the row with the text unless ``is_so``; what follows is tried nevertheless."""
        if not is_so:
            self.failures.append(otherwise)

    def note(self, text: str) -> None:
        """Tell the reader something that does not decide the row."""
        self.notes.append(text)


class Telling:
    """Tells the rows of an area, each as soon as it is done."""

    def __init__(self, area: str, claims: Mapping[str, str], out: TextIO | None = None) -> None:
        """``out``: where the rows go; stdout if None, which then carries nothing else."""
        self._area, self._claims = area, claims
        if out is None:  # what the libraries print goes to stderr
            out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
            os.dup2(2, 1)
        self._out = out

    @contextmanager
    def row(self, name: str) -> Iterator[Trial]:
        """Try a row: an exception fails it, NotTriedError says why it can't be tried here."""
        with self.rows(name) as (trial,):
            yield trial

    @contextmanager
    def rows(self, *names: str) -> Iterator[tuple[Trial, ...]]:
        """Try several rows in one go: what ends the trial ends all of them."""
        trials = tuple(Trial() for _ in names)
        outcome, why = Outcome.PASSED, ""
        try:
            yield trials
        except NotTriedError as reason:
            outcome, why = Outcome.NOT_TRIED, str(reason)
        except Exception as error:  # noqa: BLE001 - whatever a row meets is its result
            traceback.print_exc(file=sys.stderr)
            outcome, why = Outcome.FAILED, f"{type(error).__name__}: {error}"
            if type(error).__name__ == _OUT_OF_MEMORY:  # a small card, a MIG instance, or others
                outcome, why = Outcome.NOT_TRIED, f"the GPU has too little memory left: {error}"
        for name, trial in zip(names, trials, strict=True):
            texts = [why, *trial.failures, *trial.notes]
            told = "; ".join(" ".join(text.split()) for text in texts if text)[:WHY_CHARACTERS_MAX]
            end = Outcome.FAILED if trial.failures else outcome
            row = Row(f"{self._area}.{name}", self._claims[name], end, trial.figures, told)
            print(row.to_json(), file=self._out, flush=True)
