"""Checkpoints that launchers put back while ranks restored them: journals each report of it once."""

from typing import Final

from recovery.journal.attempt_records import CheckpointPutBack
from recovery.journal.ledger import Ledger
from recovery.messages.candidates import PutBack
from recovery.messages.exchange import Report

_NODES_MAX: Final = 8  # of one attempt: with local disks, a clean-up deletes on every node


class PutBackIntake:
    """The newest put-back that each node has reported."""

    def __init__(self) -> None:
        self._told: dict[str, PutBack] = {}

    def receive(self, report: Report) -> None:
        if report.put_back is not None:
            self._told[report.node] = report.put_back

    def due(self, ledger: Ledger) -> tuple[CheckpointPutBack, ...]:
        """Return the records of what the journal does not have; what an older attempt restored is over."""
        reported, self._told = self._told, {}
        journaled = dict(ledger.put_backs)
        records = []
        for node, item in reported.items():
            known = journaled.get(node)
            is_news = known is None or _rank(known) < _rank(item)
            is_recent = ledger.attempt - 1 <= item.attempt <= ledger.attempt
            others = sum(it.attempt == item.attempt for it in journaled.values() if it is not known)
            if is_news and is_recent and others < _NODES_MAX:
                record = CheckpointPutBack(
                    item.attempt, node, item.path, item.count, item.is_given_up
                )
                journaled[node] = record
                records.append(record)
        return tuple(records)


def _rank(back: PutBack | CheckpointPutBack) -> tuple[int, int, bool]:
    return back.attempt, back.count, back.is_given_up
