"""What reports and looks into the folder tell of an attempt's saves."""

from dataclasses import replace

import pytest

from recovery.controller.job.watch.meters import SaveMeter
from recovery.journal.attempt_records import SavesSeen, SavesStalled, SaveStall, StallSource
from recovery.messages.candidates import (
    Candidate,
    CheckpointFormat,
    CheckpointVerdict,
    Hindrance,
)
from recovery.messages.exchange import VERSION, RankReport, Report, StepTiming


class Steps:
    """One node whose ranks make a step a second, with what they spend in their checkpoint sections."""

    def __init__(self, meter: SaveMeter, ranks: int = 2) -> None:
        self.meter = meter
        self.now_s = 1000.0
        self.number = 0
        self.totals = [3.0] * ranks  # they restored in the section before their first step

    def step(self, *stalls_s: float, duration_s: float = 1.0, is_relative: bool = False) -> None:
        self.number += 1
        self.now_s += duration_s + max(stalls_s, default=0.0)
        for rank, stall_s in enumerate(stalls_s):
            self.totals[rank] += stall_s
        ranks = tuple(
            self.rank(rank, duration_s + max(stalls_s, default=0.0), is_relative=is_relative)
            for rank in range(len(self.totals))
        )
        self.meter.note_report(
            Report(VERSION, "n0", "boot", "job-1", 1, 1, ranks, 0), now_s=self.now_s
        )

    def rank(self, rank: int, duration_s: float, *, is_relative: bool) -> RankReport:
        timing = StepTiming(
            number=self.number,
            step=self.number + 100,
            age_s=0.0,
            compute_s=0.0,
            communication_s=0.0,
            io_s=0.0,
            checkpoint_s=self.totals[rank],
            duration_s=None if self.number == 1 else duration_s,
        )
        return RankReport(rank, rank, 10 + rank, "R", is_relative=is_relative, timings=(timing,))


def verdict(
    step: int, modified_unix_s: float, *, is_valid: bool = False, size_bytes: int = 100
) -> CheckpointVerdict:
    candidate = Candidate(
        f"/ckpt/step-{step}", step, CheckpointFormat.DCP, size_bytes, modified_unix_s
    )
    return CheckpointVerdict(candidate, is_valid, "", None if is_valid else Hindrance.WRITING)


@pytest.fixture
def meter() -> SaveMeter:
    made = SaveMeter()
    made.begin(1)
    return made


def test_stall_of_a_save_is_that_of_the_slowest_rank(meter: SaveMeter) -> None:
    steps = Steps(meter)
    for _save in range(3):
        for _step in range(9):
            steps.step(0.0, 0.0)
        steps.step(0.5, 2.0)  # 9 steps of 1 s, and this one of 3 s

    assert meter.take() == SavesSeen(3, 12.0, 2.0, StallSource.SECTION, 2.0)
    assert meter.take() is None


def test_stalls_are_told_once_with_their_ages_whether_or_not_checkpoints_are_seen(
    meter: SaveMeter,
) -> None:
    steps = Steps(meter)
    for _save in range(2):
        for _step in range(9):
            steps.step(0.0, 0.0)
        steps.step(0.5, 2.0)  # they end 12 and 24 s after the start

    stalls = meter.take_stalls(1030.0)

    assert stalls == SavesStalled(1, (SaveStall(18.0, 2.0), SaveStall(6.0, 2.0)))
    assert meter.take_stalls(1031.0) is None


def test_interval_reaches_back_to_the_save_before_the_last_note(meter: SaveMeter) -> None:
    steps = Steps(meter)
    steps.step(0.0, 0.0)
    steps.step(0.5, 0.5)
    first = meter.take()
    for _step in range(6):
        steps.step(0.0, 0.0)
    steps.step(0.5, 0.5)

    second = meter.take()

    assert first is not None
    assert (first.count, first.interval_s) == (1, None)
    assert second is not None
    assert (second.count, second.interval_s) == (1, 7.5)


def test_restore_before_the_first_step_and_looks_for_a_due_save_are_no_saves(
    meter: SaveMeter,
) -> None:
    steps = Steps(meter)
    for _step in range(5):
        steps.step(0.0002, 0.0002)
    assert meter.take() is None

    steps.step(1.0, 1.0)
    steps.step(0.002, 0.002)

    taken = meter.take()
    assert taken is not None
    assert (taken.count, taken.stall_s) == (1, pytest.approx(1.0))


def test_script_without_sections_shows_by_how_much_a_step_around_a_save_is_longer(
    meter: SaveMeter,
) -> None:
    steps = Steps(meter)
    meter.note_known((verdict(90, 5000.0, is_valid=True),), steps.now_s)
    for number in range(1, 21):
        steps.step(duration_s=1.0 if number != 11 else 3.5)
    meter.note_known((verdict(110, 5010.0), verdict(90, 5000.0, is_valid=True)), steps.now_s)
    assert meter.take() is None
    steps.now_s += 10
    meter.note_known((verdict(110, 5010.0, is_valid=True),), steps.now_s)

    taken = meter.take()

    assert taken == SavesSeen(1, None, 2.5, StallSource.STEPS, None)


@pytest.mark.parametrize("is_relative", [True, False])
def test_stall_is_unknown_where_no_step_fits_the_checkpoint(
    meter: SaveMeter, is_relative: bool
) -> None:
    steps = Steps(meter)
    meter.note_known((), steps.now_s)
    for _step in range(20):
        steps.step(duration_s=1.0, is_relative=is_relative)
    step = 110 if is_relative else 400
    meter.note_known((verdict(step, 5010.0),), steps.now_s)
    meter.note_known((verdict(step, 5010.0, is_valid=True),), steps.now_s + 10)

    assert meter.take() == SavesSeen(1, None, None, StallSource.UNKNOWN, None)


def test_save_takes_from_the_first_change_to_the_last_that_was_seen(meter: SaveMeter) -> None:
    meter.note_known((), 1000.0)
    meter.note_known((verdict(10, 5000.0, size_bytes=10),), 1005.0)
    meter.note_known((verdict(10, 5012.0, size_bytes=90),), 1015.0)
    meter.note_known((verdict(10, 5012.0, size_bytes=90, is_valid=True),), 1030.0)
    meter.note_known((verdict(20, 5100.0),), 1100.0)
    meter.note_known((verdict(20, 5100.0, is_valid=True),), 1110.0)

    taken = meter.take()

    assert taken is not None
    assert (taken.count, taken.interval_s) == (2, 88.0)  # 5,100 - 5,012, by the storage's clock
    meter.note_known((verdict(20, 5160.0),), 1160.0)  # the same path, written over
    meter.note_known((verdict(20, 5190.0, size_bytes=101),), 1195.0)  # seen up to 5 s later
    meter.note_known((verdict(20, 5190.0, size_bytes=101, is_valid=True),), 1205.0)
    assert meter.take() == SavesSeen(1, 90.0, None, StallSource.UNKNOWN, 30.0)


def test_files_of_one_save_count_from_the_oldest_unless_it_is_of_the_save_before(
    meter: SaveMeter,
) -> None:
    def folder(
        oldest_unix_s: float, modified_unix_s: float, *, is_valid: bool
    ) -> CheckpointVerdict:
        made = verdict(10, modified_unix_s, is_valid=is_valid)
        return replace(made, candidate=replace(made.candidate, oldest_unix_s=oldest_unix_s))

    def save(oldest_unix_s: float, modified_unix_s: float) -> float | None:
        meter.note_known((folder(oldest_unix_s, modified_unix_s, is_valid=False),), 1001.0)
        meter.note_known((folder(oldest_unix_s, modified_unix_s, is_valid=True),), 1011.0)
        taken = meter.take()
        assert taken is not None
        return taken.save_s

    meter.note_known((), 1000.0)

    assert save(5000.0, 5004.0) == 4.0
    assert save(5004.0, 5100.0) is None  # one file was not written again
    assert save(5198.0, 5200.0) == 2.0


def test_folder_that_was_only_listed_is_not_written_over(meter: SaveMeter) -> None:
    listed = verdict(10, 4000.0, size_bytes=0)
    meter.note_known((verdict(20, 5000.0, is_valid=True), listed), 1000.0)
    meter.note_known((verdict(10, 4050.0, is_valid=True),), 1010.0)  # the newer one is gone
    meter.note_known((verdict(20, 5100.0), verdict(10, 4050.0, is_valid=True)), 1020.0)
    meter.note_known((verdict(20, 5100.0, is_valid=True), listed), 1030.0)
    meter.note_known((verdict(10, 4050.0, is_valid=True),), 1040.0)

    assert meter.take() == SavesSeen(1, None, None, StallSource.UNKNOWN, None)


def test_what_lies_in_the_folder_as_an_attempt_begins_is_none_of_its_saves(
    meter: SaveMeter,
) -> None:
    meter.note_known((verdict(10, 5000.0),), 1000.0)
    meter.note_known((verdict(10, 5000.0, is_valid=True),), 1010.0)

    assert meter.take() is None


def test_reports_of_another_attempt_change_nothing(meter: SaveMeter) -> None:
    steps = Steps(meter)
    steps.step(0.0, 0.0)
    meter.begin(2)
    steps.step(1.0, 1.0)

    assert meter.take() is None
