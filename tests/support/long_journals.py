"""Journals as long jobs have them: records of progress, and of what was measured, between those of a short job."""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from rankmend.clock import SystemClock
from recovery.journal.attempt_records import (
    AttemptStarted,
    CheckpointSeen,
    Milestone,
    RelativeMilestone,
    SavesSeen,
    SavesStalled,
    SaveStall,
    StallSource,
    StepsSeen,
    WorkSeen,
)
from recovery.journal.journal_rows import GENESIS, make_row
from recovery.journal.records import Entry, Record
from recovery.journal.store import Journal


def with_progress(entries: Sequence[Entry], random: Random, most: int = 4) -> list[Entry]:
    """Return the journal with up to ``most`` such records behind each of its own, at times between the two."""
    found: list[Entry] = []
    attempt = 0
    for place, entry in enumerate(entries):
        found.append(entry)
        if isinstance(entry.record, AttemptStarted):
            attempt = entry.record.attempt
        following = entries[place + 1] if place + 1 < len(entries) else entry
        is_same_boot = following.boot_id == entry.boot_id
        room_s = max(0.0, following.monotonic_s - entry.monotonic_s) if is_same_boot else 30.0
        moments = sorted(random.random() * room_s for _ in range(random.randrange(most + 1)))
        for at_s in moments:
            stamps = (entry.unix_s + at_s, entry.monotonic_s + at_s, entry.boot_id)
            found.append(Entry(0, *stamps, _record(attempt, random)))
    return [replace(entry, number=number) for number, entry in enumerate(found, start=1)]


def _record(attempt: int, random: Random) -> Record:
    step = random.randrange(1, 200)
    floor = random.choice((None, step - 1, step - 20))
    return random.choice(tuple(_records(attempt, step, floor, random)))


def _records(attempt: int, step: int, floor: int | None, random: Random) -> Iterator[Record]:
    yield Milestone(attempt, step, floor)
    yield RelativeMilestone(attempt, step, floor)
    device = "NVIDIA H100 80GB HBM3"
    yield WorkSeen(attempt, random.random(), random.random(), 2, 1e12, 8.0, 2.0, "bf16", device)
    step_s = random.random()
    yield StepsSeen(attempt, 2, step, step_s, step_s / 2, step_s / 4, 0.0, step_s / 8, 0.0)
    yield SavesStalled(attempt, (SaveStall(random.random(), random.random()),))
    saves = random.choice((None, SavesSeen(1, 10.0, random.random(), StallSource.STEPS, 1.0)))
    yield CheckpointSeen(f"/c/{step}", step, "torch", "torch", 0.0, "complete", 1, saves)


def write(folder: Path, entries: Sequence[Entry], torn: int = 0) -> Path:
    """Write a journal of which the last records are torn."""
    path = folder / "journal.db"
    Journal(path, SystemClock(), "boot-1").close()
    head, rows = GENESIS, []
    for entry in entries:
        row = make_row(entry, head)
        head = row.checksum
        is_torn = entry.number > len(entries) - torn
        rows.append(row._replace(body=row.body + b" ") if is_torn else row)
    connection = sqlite3.connect(path)
    connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path
