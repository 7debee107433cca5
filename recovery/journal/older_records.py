"""Reads what a record of a version before 1.3 meant where it had only words for it. Pure.

Such a record says why a node was left and what failed in one line for people. It is taken apart here,
once, as the journal is opened; what decides asks the fields that came later.
"""

from dataclasses import replace
from functools import singledispatch
from typing import Final

from recovery.journal.incident_records import EvidenceCollected, Failure, IncidentOpened, TryFailed
from recovery.journal.job_records import StopRequested
from recovery.journal.node_records import LeaveCause, NodeLeft
from recovery.journal.observation_records import SlowFound
from recovery.journal.records import Record, decode_record
from recovery.messages.codec import finding_of_today
from recovery.messages.exchange import StopReason

_FIELDS_MINOR: Final = 3  # from this minor version on records have fields for all that decides
_CUT_OFF: Final = "cut off from "
_STOPS: Final = {reason.value: reason for reason in StopReason}


def read_record(kind: str, major: int, minor: int, body: bytes) -> Record:
    """Return the record of a stored form, as today's version would have written it."""
    record = decode_record(kind, major, minor, body)
    return record if minor >= _FIELDS_MINOR else _of_today(record)


@singledispatch
def _of_today(record: Record) -> Record:
    """Return the record with the fields that its version did not have."""
    return record


@_of_today.register
def _(record: NodeLeft) -> Record:
    # Only a node that was lost comes back by itself, so that only then the words decided anything.
    cause = LeaveCause.UNKNOWN
    if record.is_lost:
        is_cut_off = record.reason.startswith(_CUT_OFF)
        cause = LeaveCause.CUT_OFF if is_cut_off else LeaveCause.SILENT
    return replace(record, cause=cause)


@_of_today.register
def _(record: StopRequested) -> Record:
    return replace(record, cause=_STOPS.get(record.reason, StopReason.PERSON))


@_of_today.register
def _(record: IncidentOpened) -> Record:
    return replace(record, failure=_failure(record.failure))


@_of_today.register
def _(record: TryFailed) -> Record:
    if record.failure is None:
        return record
    return replace(record, failure=_failure(record.failure))


@_of_today.register
def _(record: EvidenceCollected) -> Record:
    if record.finding is None:
        return record
    return replace(record, finding=finding_of_today(record.finding))


@_of_today.register
def _(record: SlowFound) -> Record:
    return replace(record, finding=finding_of_today(record.finding))


def _failure(failure: Failure) -> Failure:
    return replace(failure, finding=finding_of_today(failure.finding))
