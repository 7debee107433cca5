"""Who a hung job waits for by its Python stacks, and what the evidence makes of a finding."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.finding import Blame
from detectors.formats.python_stacks import main_frames, parse_stacks
from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.evidence import judge_evidence
from detectors.hang.flight_dump import FlightDump
from detectors.hang.from_stacks import diagnose_stacks
from detectors.hang.python_stack import Frame
from recovery.controller.job.watch.hang_verdict import HangInquiry
from recovery.journal.narration.narrator import narrate
from recovery.messages.codec import symptom_of
from recovery.messages.exchange import Collected, RankEvidence, Report
from tests.support.findings import HUNG

TORCH = "/opt/lib/python3.11/site-packages/torch"
WAITS = (
    Frame(f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"),
    Frame(f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
    Frame("/job/train.py", 67, "main"),
)
LOADS = (
    Frame("/opt/lib/python3.11/site-packages/numpy/lib/npyio.py", 400, "load"),
    Frame("/job/data.py", 12, "read_shard"),
    Frame("/job/train.py", 60, "main"),
)
UPLOADS = (
    Frame("/opt/lib/python3.11/ssl.py", 1166, "read"),
    Frame("/opt/lib/python3.11/http/client.py", 280, "_read_status"),
    Frame("/opt/lib/python3.11/site-packages/requests/adapters.py", 667, "send"),
    Frame("/job/train.py", 71, "log_to_tracker"),
)
TEXT = """\
Thread 0x00007f7a798266c0 (most recent call first):
  File "/opt/lib/python3.11/threading.py", line 982 in run
  File "/opt/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f7a9a7c3b80 [python] (most recent call first):
  File "/job/train.py", line 34 in hang_here
  File "/job/train.py", line ??? in <module>
  ...
"""


def test_stacks_of_faulthandler_are_read_and_the_main_thread_is_the_last() -> None:
    threads = parse_stacks(TEXT)

    assert [thread.title for thread in threads] == [
        "Thread 0x00007f7a798266c0",
        "Current thread 0x00007f7a9a7c3b80 [python]",
    ]
    assert main_frames(threads) == (
        Frame("/job/train.py", 34, "hang_here"),
        Frame("/job/train.py", 0, "<module>"),
    )


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    parse_stacks(text + "\nThread 0x1 (most recent call first):\n" + text)


def test_the_rank_outside_the_collective_is_named_with_its_own_line() -> None:
    diagnosis = diagnose_stacks({0: WAITS, 1: LOADS, 2: WAITS})

    assert diagnosis is not None
    assert [culprit.rank for culprit in diagnosis.culprits] == [1]
    assert "/job/data.py:12 in read_shard, inside load" in diagnosis.reason


def test_two_ranks_of_which_one_waits_name_the_other() -> None:
    diagnosis = diagnose_stacks({0: WAITS, 1: LOADS})

    assert diagnosis is not None
    assert [culprit.rank for culprit in diagnosis.culprits] == [1]


def test_without_a_known_collective_the_crowd_waits() -> None:
    ring = (Frame("/job/ring.py", 50, "receive"),)

    diagnosis = diagnose_stacks({0: ring, 1: ring, 2: LOADS})

    assert diagnosis is not None
    assert [culprit.rank for culprit in diagnosis.culprits] == [2]
    assert diagnose_stacks({0: ring, 2: LOADS}) is None, "two ranks are no crowd"


@pytest.mark.parametrize(
    "stacks",
    [
        {},
        {0: WAITS, 1: WAITS},
        {0: LOADS, 1: LOADS},
        {0: WAITS, 1: LOADS, 2: LOADS},
        {0: WAITS, 1: ()},
    ],
    ids=["none", "all wait", "none waits", "most are elsewhere", "one told nothing"],
)
def test_stacks_that_tell_no_rank_from_the_others_name_nobody(
    stacks: dict[int, tuple[Frame, ...]],
) -> None:
    assert diagnose_stacks(stacks) is None


def test_a_hook_of_the_script_inside_a_backward_pass_is_no_wait() -> None:
    backward = Frame(f"{TORCH}/autograd/graph.py", 865, "_engine_run_backward")
    hook = (Frame("/job/hooks.py", 9, "clip"), backward, Frame("/job/train.py", 61, "main"))
    inside = (backward, Frame("/job/train.py", 61, "main"))

    diagnosis = diagnose_stacks({0: inside, 1: hook, 2: inside})

    assert diagnosis is not None
    assert [culprit.rank for culprit in diagnosis.culprits] == [1]


def test_stacks_name_the_culprit_of_a_hang_that_accused_nobody() -> None:
    judged = judge_evidence(HUNG, {}, {0: WAITS, 1: WAITS, 2: LOADS, 3: WAITS})

    assert judged.finding.ranks == (2,)
    assert judged.finding.victims == (0, 1, 3)
    assert judged.finding.blame is Blame.RANK
    assert judged.finding.signature == "hung:host-stuck"


def test_a_stopped_process_stays_the_culprit_whatever_the_stacks_say() -> None:
    stopped = replace(
        HUNG, blame=Blame.RANK, ranks=(3,), victims=(0, 1, 2), symptom=symptom_of("hung:stopped")
    )

    judged = judge_evidence(stopped, {}, {0: WAITS, 1: WAITS, 2: LOADS})

    assert judged.finding.ranks == (3,)
    assert "they would name rank 2" in judged.finding.evidence[0].text


def dump(launched: int, done: int) -> FlightDump:
    """Return the dump of a rank that has launched so many collectives and finished so many."""
    entries = [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce",
            "state": "completed" if number <= done else "started",
            "retired": number <= done,
            "is_p2p": False,
            "input_sizes": [[4]],
            "output_sizes": [[4]],
            "input_dtypes": ["Float"],
            "output_dtypes": ["Float"],
            "time_created_ns": 1_000_000_000 * (1000 + number),
        }
        for number in range(1, launched + 1)
    ]
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    return parse_dump(
        json.dumps({"version": "2.10", "entries": entries, "pg_config": groups}).encode()
    )


def test_dumps_name_the_rank_that_has_not_launched_what_its_peers_wait_in() -> None:
    dumps = {0: dump(7, 6), 1: dump(6, 6), 2: dump(7, 6), 3: dump(7, 6)}

    judged = judge_evidence(HUNG, dumps, {0: WAITS, 1: LOADS, 2: WAITS, 3: LOADS})

    assert judged.finding.ranks == (1,), "dumps are believed before stacks"
    assert judged.cause == "host-stuck"
    assert judged.confidence > 0.8


@pytest.mark.parametrize("has_dumps", [True, False])
def test_rank_that_waits_for_a_service_is_named_and_its_node_is_not_blamed(has_dumps: bool) -> None:
    dumps = {0: dump(6, 6), 1: dump(7, 6), 2: dump(7, 6), 3: dump(7, 6)} if has_dumps else {}

    judged = judge_evidence(HUNG, dumps, {0: UPLOADS, 1: WAITS, 2: WAITS, 3: WAITS})
    other = judge_evidence(HUNG, dumps, {0: LOADS, 1: WAITS, 2: WAITS, 3: WAITS})

    assert (judged.finding.blame, judged.finding.ranks) == (Blame.NOBODY, (0,))
    assert judged.finding.summary.endswith("rank 0 waits for something outside the job")
    assert (other.finding.blame, other.finding.ranks) == (Blame.RANK, (0,))


def test_rank_whose_own_code_a_client_calls_is_blamed() -> None:
    called = (Frame("/job/hooks.py", 9, "retry"), *UPLOADS)

    judged = judge_evidence(HUNG, {}, {0: called, 1: WAITS, 2: WAITS, 3: WAITS})

    assert judged.finding.blame is Blame.RANK


def gloo_dump(launched: int, done: int) -> FlightDump:
    """Return a dump as gloo of PyTorch 2.13 writes it: its one group has no name."""
    entries = [
        {
            "record_id": number - 1,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "profiling_name": "gloo:all_reduce",
            "state": "scheduled",
            "retired": number <= done,
            "is_p2p": False,
        }
        for number in range(1, launched + 1)
    ]
    config = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}
    status = {"0": {"last_enqueued_collective": launched, "last_completed_collective": done}}
    table = {"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries}
    return parse_dump(json.dumps(table).encode())


def test_dumps_of_gloo_name_the_rank_that_is_waited_for() -> None:
    dumps = {0: gloo_dump(12, 11), 1: gloo_dump(11, 11), 2: gloo_dump(12, 11)}

    judged = judge_evidence(HUNG, dumps, {})

    assert judged.finding.ranks == (1,)
    assert dumps[0].groups[0].ranks == (0, 1, 2)


def test_dumps_in_which_nothing_waits_leave_the_word_to_the_stacks() -> None:
    dumps = {rank: gloo_dump(11, 11) for rank in range(3)}

    judged = judge_evidence(HUNG, dumps, {0: WAITS, 1: LOADS, 2: WAITS})

    assert judged.finding.ranks == (1,)


def test_a_rank_that_lives_and_wrote_no_dump_is_not_called_gone() -> None:
    dumps = {0: dump(7, 6), 1: dump(7, 6), 2: dump(7, 6)}

    judged = judge_evidence(HUNG, dumps, {}, alive=frozenset({0, 1, 2, 3}))

    assert judged.cause != "process-gone"


def test_without_dumps_and_stacks_the_finding_stays_as_it_was() -> None:
    assert judge_evidence(HUNG, {}, {}).finding == HUNG


def test_culprits_on_several_nodes_are_named_and_why_no_node_is_blamed_is_told() -> None:
    desk = HangInquiry()
    for node, ranks in (("a", (0, 1)), ("b", (2, 3))):
        dumps = tuple(RankEvidence(rank, (), dump(6 + (rank in (0, 3)), 6)) for rank in ranks)
        told = Collected("i-1", 1, "/e", 1, 10, 0.1, (), dumps)
        desk.note_saved(Report(1, node, "boot", "job", 1, 1, (), 0, collected=told), 0.0, ())

    record = desk.due(("a", "b"), HUNG, 1.0)

    assert record is not None
    assert record.finding is not None
    assert (record.finding.ranks, record.finding.node) == ((1, 2), "")
    told_to_people = "they are on a, b, so no single node is to blame"
    assert told_to_people in narrate(record)
    assert told_to_people in record.finding.summary
