"""Stacks at the end of a training: in which call the rest stands, and whether that is training."""

import pytest

from detectors.finding import Blame, Finding, Kind, Severity, Symptom, SymptomKind
from detectors.hang.evidence import ENDING, FINISHED, judge_evidence
from detectors.hang.live import HangCause
from detectors.hang.python_stack import Frame

EXITED = Symptom(SymptomKind.HUNG, HangCause.EXITED.value)
LIB = "/opt/lib/python3.11/site-packages/"
ALL_REDUCE = (
    Frame(LIB + "torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    Frame(LIB + "torch/distributed/c10d_logger.py", 83, "wrapper"),
    Frame("/job/train.py", 30, "main"),
)
JOIN = (
    Frame("/usr/lib/python3.11/threading.py", 1112, "join"),
    Frame(LIB + "wandb/sdk/wandb_run.py", 40, "_atexit_cleanup"),
    Frame(LIB + "wandb/sdk/wandb_run.py", 20, "finish"),
    Frame("/job/train.py", 52, "<module>"),
)
SHUTDOWN = (Frame("/usr/lib/python3.11/threading.py", 1590, "_shutdown"),)
DESTROYS = (
    Frame(LIB + "torch/distributed/distributed_c10d.py", 2300, "destroy_process_group"),
    Frame("/job/train.py", 80, "main"),
)
SAVE = (Frame(LIB + "torch/serialization.py", 900, "_save"), Frame("/job/train.py", 60, "main"))
OWN = (Frame("/job/train.py", 70, "finish"),)


def finding(symptom: Symptom) -> Finding:
    return Finding(
        Kind.RANK_HUNG, Severity.CRITICAL, Blame.NOBODY, "S", "j", 1, "", (), (0, 1), 9.0, symptom=symptom,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("symptom", "stacks", "after", "summary"),
    [
        (EXITED, {0: ALL_REDUCE, 1: ALL_REDUCE}, EXITED, "S in all_reduce"),
        (EXITED, {0: ALL_REDUCE, 1: OWN}, EXITED, "S (rank 0: in all_reduce; rank 1: in finish (train.py:70))"),
        (ENDING, {0: JOIN, 1: JOIN}, FINISHED, "S in join (threading.py:1112), from /job/train.py:52"),
        (ENDING, {0: SHUTDOWN, 1: SHUTDOWN}, FINISHED, "S in _shutdown (threading.py:1590)"),
        (ENDING, {0: OWN, 1: OWN}, FINISHED, "S in finish (train.py:70)"),
        (ENDING, {0: DESTROYS, 1: DESTROYS}, FINISHED, "S in destroy_process_group"),
        (ENDING, {0: OWN}, ENDING, "S (rank 0: in finish (train.py:70))"),
        (ENDING, {0: OWN, 1: SAVE}, ENDING, "S (rank 0: in finish (train.py:70); rank 1: in _save (serialization.py:900), from /job/train.py:60)"),
        (ENDING, {0: ALL_REDUCE, 1: OWN}, ENDING, "S (rank 0: in all_reduce; rank 1: in finish (train.py:70))"),
        (ENDING, {}, ENDING, "S"),
        (FINISHED, {}, FINISHED, "S"),
        (FINISHED, {0: SAVE, 1: SAVE}, FINISHED, "S in _save (serialization.py:900), from /job/train.py:60"),
    ],
)  # fmt: skip
def test_calls_are_named_and_only_stacks_outside_of_frameworks_prove_the_end(
    symptom: Symptom, stacks: dict[int, tuple[Frame, ...]], after: Symptom, summary: str
) -> None:
    judged = judge_evidence(finding(symptom), {}, stacks).finding

    assert (judged.symptom, judged.summary) == (after, summary)
