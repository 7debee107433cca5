"""Journals that an older rankmend wrote (tests/fixtures/journals/README.md)."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from recovery.controller.job.settings import JobSettings
from recovery.journal.fold.entry_fold import fold
from recovery.journal.ledger import Ledger
from recovery.journal.older_records import read_record
from recovery.journal.records import Entry

FOLDER = Path(__file__).parents[1] / "fixtures" / "journals"
CASES = sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.jsonl.gz"))
JOBS = [name for name in CASES if name != "cluster"]
MAJOR, MINOR = 1, 2  # of the records


@dataclass(frozen=True)
class OldJournal:
    head: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def settings(self) -> JobSettings:
        then = dict(self.head["settings"])
        if placement := then.pop("placement"):  # on one node, known beforehand then
            ((node, ranks),) = ((place["node"], place["ranks"]) for place in placement)
            then |= {"nodes_min": 1, "nodes_max": 1, "slots": len(ranks), "own_node": node}
        return msgspec.convert(then, JobSettings)

    def states(self) -> Iterator[tuple[dict[str, Any], Ledger]]:
        """Yield each line with the state after it."""
        ledger = Ledger()
        for line, entry in zip(self.lines, self.entries(), strict=True):
            ledger = fold(ledger, entry)
            yield line, ledger

    def entries(self) -> list[Entry]:
        return [
            Entry(
                line["n"],
                line["t"][0],
                line["t"][1],
                line["t"][2],
                read_record(line["kind"], MAJOR, MINOR, json.dumps(line["record"]).encode()),
            )
            for line in self.lines
        ]


@cache
def read(name: str) -> OldJournal:
    text = gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes())
    head, *lines = [json.loads(line) for line in text.splitlines()]
    return OldJournal(head, lines)
