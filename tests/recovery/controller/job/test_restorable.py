"""What the console and the journal say a failure would restore now."""

from dataclasses import replace

from recovery.controller.job.restore.restorable import checkpoint_seen
from recovery.controller.job.watch.meters import SaveMeter
from recovery.journal.attempt_records import AttemptStarted, Cause, Choice
from recovery.journal.narration.narrator import narrate
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict, Hindrance
from recovery.messages.exchange import Restore
from tests.support.job_ledgers import POLICY, ledger


def verdict(step: int, hindrance: Hindrance | None) -> CheckpointVerdict:
    candidate = Candidate(f"/c/step_{step}.npz", step, CheckpointFormat.NPZ, 10, 1000.0 + step)
    reason = "still being written" if hindrance is Hindrance.WRITING else "whole"
    return CheckpointVerdict(candidate, hindrance is None, reason, hindrance)


def test_a_newer_save_that_is_under_way_is_named() -> None:
    known = [verdict(step, Hindrance.WRITING) for step in (40, 30)] + [verdict(20, None)]

    seen = checkpoint_seen(ledger(), POLICY, known, SaveMeter())

    assert seen is not None
    assert narrate(seen) == (
        "a failure now can restore /c/step_20.npz at step 20, or step_40.npz if its save has ended by then (npz file; whole)"
    )


def test_neither_an_older_save_nor_a_newer_damaged_one_is_named() -> None:
    known = [
        verdict(40, Hindrance.DAMAGED),
        verdict(20, None),
        verdict(10, Hindrance.WRITING),
    ]

    seen = checkpoint_seen(ledger(), POLICY, known, SaveMeter())

    assert seen is not None
    assert narrate(seen) == "a failure now can restore /c/step_20.npz at step 20 (npz file; whole)"


def test_the_save_that_was_restored_is_noted_though_it_is_younger_than_the_grace() -> None:
    known = [verdict(40, Hindrance.WRITING), verdict(20, None)]
    choice = Choice(True, Restore("/c/step_40.npz", 40), "whole", modified_unix_s=1040.0)
    began = replace(ledger(), started=AttemptStarted(2, Cause.INCIDENT, choice))

    seen = checkpoint_seen(began, POLICY, known, SaveMeter())

    assert seen is not None
    assert (seen.path, seen.newer_path, seen.reason) == ("/c/step_40.npz", None, "whole")


def test_a_save_over_the_one_that_was_restored_is_not_trusted() -> None:
    known = [verdict(40, Hindrance.WRITING), verdict(20, None)]
    choice = Choice(True, Restore("/c/step_40.npz", 40), "whole", modified_unix_s=999.0)
    began = replace(ledger(), started=AttemptStarted(2, Cause.INCIDENT, choice))

    seen = checkpoint_seen(began, POLICY, known, SaveMeter())

    assert seen is not None
    assert (seen.path, seen.newer_path) == ("/c/step_20.npz", "/c/step_40.npz")
