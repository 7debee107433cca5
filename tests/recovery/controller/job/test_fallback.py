"""A step back to an older checkpoint, by what the journal's records add up to."""

from dataclasses import replace

import pytest

from detectors.failed.error_text import ErrorText, fingerprint
from detectors.finding import Blame, Finding, Kind, Severity, Symptom, SymptomKind
from recovery.controller.job.planner import plan, refuse_choice
from recovery.controller.job.restore.restore_choice import choose_checkpoint, is_progress
from recovery.journal.attempt_records import (
    AttemptStarted,
    AttemptVerified,
    Cause,
    CheckpointPutBack,
    Choice,
    Milestone,
)
from recovery.journal.fold.entry_fold import fold
from recovery.journal.incident_records import Failure, IncidentOpened
from recovery.journal.ledger import Ledger
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.records import Entry, Record
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict
from recovery.messages.exchange import RankError

POLICY = Policy()
MISSING_KEY = RankError(
    "KeyError",
    "'optimizer'",
    "Traceback (most recent call last):\n"
    '  File "train.py", line 12, in load_checkpoint\n'
    '    optimizer.load_state_dict(state["optimizer"])\n'
    "KeyError: 'optimizer'",
)
WRONG_SIZE = RankError(
    "RuntimeError",
    "Error(s) in loading state_dict for Net:",
    "Traceback (most recent call last):\n"
    '  File "train.py", line 12, in main\n'
    "    model.load_state_dict(state)\n"
    "RuntimeError: Error(s) in loading state_dict for Net:",
)
OPEN_ERROR = RankError(
    "KeyError",
    "'text'",
    "Traceback (most recent call last):\n"
    '  File "train.py", line 12, in main\n'
    '    rows = batch["text"]\n'
    "KeyError: 'text'",
)
SERVICE = RankError(
    "CommError",
    "Error communicating with wandb process",
    "wandb.errors.CommError: Error communicating with wandb process",
)
DISK = RankError(
    "OSError",
    "[Errno 5] Input/output error",
    "Traceback (most recent call last):\n"
    '  File "train.py", line 12, in load_checkpoint\n'
    "    torch.load(path)\n"
    "OSError: [Errno 5] Input/output error",
)


def verdict(step: int) -> CheckpointVerdict:
    candidate = Candidate(f"/c/{step}", step, CheckpointFormat.NPZ, 10, 1000.0 + step)
    return CheckpointVerdict(candidate, True, "whole")


class Run:
    """A job whose attempts begin from what the planner chooses among ``steps``, newest first, and fail as a test says."""

    def __init__(self, *steps: int, policy: Policy = POLICY, tells: bool = True) -> None:
        self.steps = list(steps)
        self.policy = policy
        self.tells = frozenset({0, 1}) if tells else frozenset[int]()
        self.is_taken: bool | None = None
        self.ledger = replace(Ledger(), telling_ranks=self.tells)
        self.refusal = ""
        self.record(AttemptStarted(1, Cause.FIRST, Choice(True, None, "no checkpoint found")))

    def record(self, record: Record) -> None:
        number = self.ledger.number + 1
        self.ledger = fold(self.ledger, Entry(number, 1e9 + number, float(number), "boot", record))

    def fail(
        self,
        error: RankError | None,
        kind: SymptomKind = SymptomKind.EXCEPTION,
        *,
        step: int | None = None,
    ) -> int | None:
        """Let the newest attempt fail; return the step that the next one begins from, or None if none does."""
        detail = "" if error is None else fingerprint(ErrorText(error.type_name, error.message, ""))
        is_own = kind is SymptomKind.EXCEPTION
        finding = Finding(
            kind=Kind.RANK_FAILED,
            severity=Severity.CRITICAL,
            blame=Blame.PROGRAM if is_own else Blame.RANK,
            summary="all 2 ranks ended alike",
            job_id="job-1",
            attempt=self.ledger.attempt,
            node="n1",
            ranks=() if is_own else (0,),
            victims=(),
            since_age_s=0.5,
            symptom=Symptom(kind, detail),
        )
        failure = Failure(self.ledger.attempt, finding, 1, 0, error, step, False, tuple(self.tells))
        self.record(IncidentOpened("inc-1", failure, 0.0, step, self.policy))
        made = plan(finding, self.ledger, self.policy, None)
        self.refusal = made.reason if made.step is PlanStep.ESCALATE else ""
        if self.refusal:
            return None
        choice = choose_checkpoint(self.ledger, self.policy, [verdict(one) for one in self.steps])
        self.refusal = refuse_choice(finding, self.ledger, self.policy, choice) or ""
        if self.refusal:
            return None
        return self.begin(choice, Cause.INCIDENT)

    def begin(self, choice: Choice, cause: Cause) -> int:
        has_moved = is_progress(self.ledger, choice)
        self.record(
            AttemptStarted(
                *(self.ledger.attempt + 1, cause, choice),
                is_progress=has_moved,
                is_taken=self.is_taken,
            )
        )
        return -1 if choice.begins_at is None else choice.begins_at

    def passed_over(self) -> dict[str, str]:
        assert self.ledger.started is not None
        return {one.path: one.reason for one in self.ledger.started.choice.passed_over}


def killed(*steps: int, **more: object) -> Run:
    """Return a job that was killed at step 70 and begins from the newest checkpoint."""
    run = Run(*steps, **more)  # type: ignore[arg-type]
    run.record(Milestone(1, 70))
    assert run.fail(None, SymptomKind.KILLED, step=70) == steps[0]
    return run


@pytest.mark.parametrize("error", [MISSING_KEY, WRONG_SIZE])
def test_a_checkpoint_that_the_program_cannot_load_is_passed_over_at_once(error: RankError) -> None:
    run = killed(60, 40, 20)

    assert run.fail(error) == 40
    assert run.passed_over() == {
        "/c/60": f"attempt 2 could not load it: {error.type_name}: {error.message}"
    }


def test_it_stays_passed_over_once_the_older_one_has_served() -> None:
    run = killed(60, 40, 20)
    run.fail(MISSING_KEY)
    run.record(AttemptVerified(3, True, (0, 1), first_step=41))

    assert run.fail(None, SymptomKind.KILLED, step=50) == 40
    assert run.passed_over() == {
        "/c/60": "the program could not begin from it: KeyError: 'optimizer'"
    }


def test_a_newer_save_is_restored_though_one_before_it_could_not_be_loaded() -> None:
    run = killed(60, 40, 20)
    run.fail(MISSING_KEY)
    run.record(AttemptVerified(3, True, (0, 1), first_step=41))
    run.steps = [80, 60, 40, 20]

    assert run.fail(None, SymptomKind.KILLED, step=90) == 80


def test_a_person_who_starts_the_job_again_gets_the_newest_one() -> None:
    run = killed(60, 40, 20)
    run.fail(MISSING_KEY)
    run.record(AttemptVerified(3, True, (0, 1), first_step=41))

    run.begin(choose_checkpoint(Ledger(), POLICY, [verdict(60)]), Cause.RESUMED)

    assert run.ledger.not_loaded == ()
    assert run.fail(None, SymptomKind.KILLED, step=65) == 60


def test_at_most_three_steps_back_are_tried_and_each_checkpoint_is_named() -> None:
    run = killed(60, 50, 40, 30, 20)

    begun = [run.fail(MISSING_KEY) for _attempt in range(4)]

    assert begun == [50, 40, 30, None]
    assert run.refusal.startswith(
        "the program can't load the newest 4 checkpoints: 60 (KeyError: 'optimizer'); 50 (KeyError"
    )


def test_how_many_steps_back_is_the_policys() -> None:
    run = killed(60, 50, 40, policy=Policy(fallbacks_max=1))

    assert [run.fail(MISSING_KEY) for _attempt in range(2)] == [50, None]
    run = killed(60, 50, 40, policy=Policy(fallbacks_max=0))
    assert [run.fail(MISSING_KEY) for _attempt in range(2)] == [60, None]


def test_without_an_older_one_the_program_is_blamed_after_the_second_time() -> None:
    run = killed(60)

    assert [run.fail(MISSING_KEY) for _attempt in range(2)] == [60, None]
    assert run.refusal == (
        "the same error before the first step in 2 attempts in a row: the program itself fails: "
        "rank 0: KeyError: 'optimizer'"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SERVICE, SymptomKind.EXCEPTION),
        (DISK, SymptomKind.EXCEPTION),
        (RankError("OutOfMemoryError", "CUDA out of memory", ""), SymptomKind.DEVICE_MEMORY),
    ],
)
def test_what_another_checkpoint_cannot_help_is_never_a_reason_to_step_back(
    error: RankError, kind: SymptomKind
) -> None:
    run = killed(60, 40, 20)

    assert [run.fail(error, kind) for _attempt in range(2)] == [60, None]
    assert "in 2 attempts in a row" in run.refusal


@pytest.mark.parametrize(
    "kind", [SymptomKind.COMMUNICATION, SymptomKind.HOST_MEMORY, SymptomKind.DEVICE]
)
def test_nor_is_it_held_against_the_checkpoint_however_often_it_comes(kind: SymptomKind) -> None:
    run = killed(60, 40, 20)

    assert [run.fail(None, kind) for _attempt in range(3)] == [60, 60, 60]
    assert run.fail(None, kind) is None


def test_another_error_of_the_program_is_one_when_it_came_twice_from_this_checkpoint_only() -> None:
    run = killed(60, 40, 20)

    assert [run.fail(OPEN_ERROR) for _attempt in range(2)] == [60, 40]
    assert run.passed_over() == {
        "/c/60": "2 attempts from it ended before the first step: KeyError: 'text'"
    }


def test_the_same_error_from_the_older_one_too_is_the_programs() -> None:
    run = killed(60, 40, 20)

    assert [run.fail(OPEN_ERROR) for _attempt in range(3)] == [60, 40, None]
    assert run.refusal.startswith(
        "the same error before the first step from 2 checkpoints: the program itself fails"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, SymptomKind.KILLED),
        (SERVICE, SymptomKind.EXCEPTION),
        (OPEN_ERROR, SymptomKind.EXCEPTION),
    ],
)
def test_the_newest_is_tried_again_where_the_older_one_fails_for_another_reason(
    error: RankError | None, kind: SymptomKind
) -> None:
    run = killed(60, 40, 20)

    assert run.fail(MISSING_KEY) == 40
    assert run.fail(error, kind) == 60
    assert run.fail(MISSING_KEY) == 40


def test_a_job_that_swings_between_two_checkpoints_ends() -> None:
    run = killed(60, 40, 20)

    begun = [run.fail((MISSING_KEY, SERVICE)[number % 2]) for number in range(4)]

    assert begun == [40, 60, 40, None]


def test_errors_are_not_counted_across_checkpoints() -> None:
    run = killed(60, 40, 20, policy=Policy(no_progress_max=9))
    run.fail(OPEN_ERROR)
    run.steps = [40, 20]  # the newest was deleted
    run.begin(choose_checkpoint(run.ledger, POLICY, [verdict(40)]), Cause.INCIDENT)

    assert run.fail(OPEN_ERROR) == 40
    assert run.fail(OPEN_ERROR) is None
    assert run.refusal.startswith("the same error before the first step in 2 attempts in a row")


def test_a_file_that_is_put_back_while_ranks_read_it_is_not_passed_over() -> None:
    run = killed(60, 40, 20)
    run.record(CheckpointPutBack(2, "n1", "/c/60"))

    assert run.fail(MISSING_KEY) == 60


def test_a_program_that_takes_no_checkpoint_gets_no_older_one() -> None:
    run = Run(60, 40, 20)
    run.is_taken = False
    run.record(Milestone(1, 70))
    run.fail(None, SymptomKind.KILLED, step=70)

    assert [run.fail(MISSING_KEY) for _attempt in range(2)] == [60, None]


def test_a_program_that_asked_for_its_checkpoint_takes_it_whatever_its_text_says() -> None:
    run = Run(60, 40, 20)
    run.is_taken = False
    run.record(AttemptVerified(1, True, (0, 1), resumed_age_s=3.0, first_step=1))
    run.fail(None, SymptomKind.KILLED, step=70)

    assert run.fail(MISSING_KEY) == 40


def test_a_program_that_was_seen_to_begin_elsewhere_gets_no_older_one() -> None:
    run = killed(60, 40, 20)
    run.fail(MISSING_KEY)
    run.record(AttemptVerified(3, True, (0, 1), first_step=61, own_choice_step=60))
    run.fail(None, SymptomKind.KILLED, step=70)

    assert [run.fail(MISSING_KEY) for _attempt in range(2)] == [60, None]


def test_at_an_unknown_step_a_newer_checkpoint_means_another_place() -> None:
    run = Run(tells=False)
    run.steps = [40]
    assert run.fail(OPEN_ERROR) == 40
    run.steps = [60, 40]
    assert run.fail(OPEN_ERROR) == 60
    run.steps = [80, 60, 40]
    assert run.fail(OPEN_ERROR) == 80

    assert [run.fail(OPEN_ERROR) for _attempt in range(3)][-1] is None


def test_at_an_unknown_step_the_same_error_twice_without_a_newer_one_is_the_programs() -> None:
    run = Run(tells=False)
    run.record(AttemptVerified(1, False, ()))

    assert [run.fail(OPEN_ERROR) for _attempt in range(2)] == [-1, None]
    assert run.refusal.startswith("the same error at an unknown step in 2 attempts in a row")


def test_at_an_unknown_step_the_count_begins_anew_with_a_newer_checkpoint() -> None:
    run = Run(tells=False)
    run.steps = [40]

    assert [run.fail(OPEN_ERROR) for _attempt in range(3)] == [40, 40, None]
