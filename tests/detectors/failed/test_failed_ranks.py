import itertools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.failed.error_classes import CLASSES, classify, read_end
from detectors.failed.error_text import ErrorText
from detectors.failed.failed_ranks import (
    DO_NOT_RETRY,
    EVIDENCE_MAX,
    TOGETHER_S,
    RankEnd,
    detect_failed,
)
from detectors.failed.said_error import FailureCause, SaidAtEnd
from detectors.finding import Blame, Finding, Kind, Severity, SymptomKind

RESET = ErrorText("RuntimeError", "[gloo/pair.cc:537] Read error: Connection reset by peer", "")
CLOSED = ErrorText("RuntimeError", "[gloo/pair.cc:553] Connection closed by peer [::1]:7318", "")
BAD_BATCH = ErrorText("ValueError", "bad batch 7", "")
ECC = ErrorText("RuntimeError", "CUDA error: uncorrectable ECC error encountered", "")
ASSERT = ErrorText("RuntimeError", "CUDA error: device-side assert triggered", "")
ILLEGAL = ErrorText("RuntimeError", "CUDA error: an illegal memory access was encountered", "")
CUDA_OOM = ErrorText("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "")
NO_MEMORY = ErrorText("MemoryError", "", "")
WATCHDOG = ErrorText("DistBackendError", "[Rank 3] Watchdog caught collective operation", "")


def exited(rank: int, code: int, error: ErrorText | None = None, age_s: float = 1.0) -> RankEnd:
    return RankEnd(rank, age_s, code, None, words=read_end(error, ()))


def died(rank: int, signal: int, age_s: float = 1.0, **more: object) -> RankEnd:
    return RankEnd(rank, age_s, None, signal, **more)  # type: ignore[arg-type]


def stopped(rank: int, error: ErrorText | None = None) -> RankEnd:
    return RankEnd(rank, 0.5, None, 9, by_launcher=True, words=read_end(error, ()))


def victims_of(*ranks: int, age_s: float = 0.9) -> list[RankEnd]:
    return [exited(rank, 1, RESET if rank % 2 else CLOSED, age_s) for rank in ranks]


def found(*ends: RankEnd, world_size: int = 4) -> Finding:
    finding = detect_failed(ends, job_id="j", attempt=2, node="n1", world_size=world_size)
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at THCCachingHostAllocator.cpp:265",
        "F tensorflow/stream_executor/lib/statusor.cc:34] failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error",
    ],
)
@pytest.mark.parametrize("after", [(), ("terminate called without an active exception",)])
def test_an_abort_behind_a_devices_own_word_is_the_devices(line: str, after: list[str]) -> None:
    words = read_end(None, ["step 7", line, *after])

    finding = found(died(2, 6, words=words), stopped(0), stopped(1), stopped(3))

    assert (finding.symptom.kind, finding.blame) == (SymptomKind.DEVICE, Blame.RANK)
    assert "ECC" in finding.summary


@pytest.mark.parametrize(
    "line",
    [
        "n1:88:91 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/NVLink",
        "uncorrectable ECC errors: 0",
        "CUDA error: out of memory, again with half the batch",
        "Xid count: 0",
    ],
)
def test_a_log_line_with_a_devices_word_accuses_no_device(line: str) -> None:
    finding = found(RankEnd(2, 1.0, 3, None, words=read_end(None, [line, "giving up"])))

    assert (finding.symptom.kind, finding.blame) == (SymptomKind.EXIT, Blame.PROGRAM)


def test_a_fatal_line_of_jax_about_another_task_is_a_lost_peer() -> None:
    line = "F external/xla/xla/pjrt/distributed/client.h:80] Terminating process because the JAX distributed service detected fatal errors."

    finding = found(*(died(rank, 6, words=read_end(None, [line])) for rank in range(4)))

    assert (finding.symptom.kind, finding.ranks) == (SymptomKind.COMMUNICATION, ())


def test_killed_rank_is_named_with_its_signal_and_its_victims() -> None:
    finding = found(*victims_of(0, 1), died(2, 9, step=35), stopped(3))

    assert finding.kind is Kind.RANK_FAILED
    assert finding.severity is Severity.CRITICAL
    assert (finding.blame, finding.ranks, finding.victims) == (Blame.RANK, (2,), (0, 1, 3))
    assert finding.signature == "killed:SIGKILL"
    assert finding.summary == "rank 2 failed first after step 35: SIGKILL"
    assert (finding.job_id, finding.attempt, finding.node) == ("j", 2, "n1")
    assert finding.since_age_s == 1.0
    assert [(line.source, line.text) for line in finding.evidence] == [
        (
            "wait status",
            "rank 2: SIGKILL (no out-of-memory kill was counted; the sender is not known), "
            "1.00 s earlier",
        ),
        ("stderr", "rank 0: lost a peer: RuntimeError: " + CLOSED.message),
        ("stderr", "rank 1: lost a peer: RuntimeError: " + RESET.message),
        ("launcher", "rank 3: stopped by rankmend (SIGKILL)"),
    ]


@pytest.mark.parametrize("signal", [6, 11])
@pytest.mark.parametrize(
    ("is_uncaught", "kind"), [(True, SymptomKind.EXCEPTION), (False, SymptomKind.CRASHED)]
)
def test_crash_after_the_error_that_ended_the_script_is_one_of_the_exit(
    signal: int, is_uncaught: bool, kind: SymptomKind
) -> None:
    error = replace(BAD_BATCH, is_uncaught=is_uncaught)

    finding = found(died(2, signal, words=read_end(error, ())), *victims_of(0, 1, 3))

    name = {6: "SIGABRT", 11: "SIGSEGV"}[signal]
    assert (finding.symptom.kind, finding.ranks) == (kind, (2,))
    assert f"ValueError: bad batch 7; then {name}" in finding.summary or not is_uncaught


def test_signal_death_outranks_communication_errors_that_were_seen_earlier() -> None:
    finding = found(*victims_of(0, 1, 3, age_s=2.0), died(2, 11, age_s=1.0))

    assert (finding.ranks, finding.victims) == ((2,), (0, 1, 3))
    assert finding.signature == "crashed:SIGSEGV"
    assert finding.since_age_s == 1.0


def test_earliest_of_two_failures_is_the_culprit() -> None:
    finding = found(died(1, 11, age_s=1.0), exited(2, 1, BAD_BATCH, age_s=3.0), stopped(0))

    assert (finding.ranks, finding.victims) == ((2,), (0, 1))
    assert "failed later: SIGSEGV" in finding.evidence[1].text + finding.evidence[2].text


@pytest.mark.parametrize(
    ("apart_s", "ranks"), [(0.0, (1, 2)), (TOGETHER_S, (1, 2)), (TOGETHER_S + 0.125, (1,))]
)
def test_two_killed_together_are_both_named(apart_s: float, ranks: tuple[int, ...]) -> None:
    finding = found(died(1, 9, age_s=2.0), died(2, 9, age_s=2.0 - apart_s), *victims_of(0, 3))

    assert (finding.ranks, finding.blame) == (ranks, Blame.RANK)


def test_ranks_that_ended_well_or_were_stopped_are_no_failure() -> None:
    ends = [exited(0, 0), stopped(1), stopped(2, RESET)]

    assert detect_failed(ends, job_id="j", attempt=1, node="n", world_size=3) is None
    assert detect_failed([], job_id="j", attempt=1, node="n", world_size=3) is None


@pytest.mark.parametrize(
    ("end", "blame", "signature"),
    [
        (died(2, 9, oom_killed=True), Blame.MEMORY, "oom_killed"),
        (exited(2, 1, NO_MEMORY), Blame.MEMORY, "host_memory:MemoryError:"),
        (exited(2, 1, CUDA_OOM), Blame.PROGRAM, "device_memory:OutOfMemoryError:CUDA out of memory. Tried to allocate # GiB"),
        (exited(2, 1, ECC), Blame.RANK, "device:RuntimeError:CUDA error: uncorrectable ECC error encountered"),
        (exited(2, 1, ASSERT), Blame.PROGRAM, "program:RuntimeError:CUDA error: device-side assert triggered"),
        (exited(2, 1, ILLEGAL), Blame.RANK, "kernel_fault:RuntimeError:CUDA error: an illegal memory access was encountered"),
        (exited(2, 1, BAD_BATCH), Blame.PROGRAM, "exception:ValueError:bad batch #"),
        (exited(2, 3), Blame.PROGRAM, "exit:3"),
        (exited(2, DO_NOT_RETRY, BAD_BATCH), Blame.PROGRAM, "do_not_retry"),
        (exited(2, 137), Blame.RANK, "killed:SIGKILL"),  # a shell tells of its child
        (exited(2, 143), Blame.USER, "user:SIGTERM"),
        (exited(2, 247), Blame.RANK, "killed:SIGKILL"),  # a Python that ended with its child's -9
        (exited(2, 245), Blame.RANK, "crashed:SIGSEGV"),
        (exited(2, 255), Blame.PROGRAM, "exit:255"),  # sys.exit(-1) is no SIGHUP
        (died(2, 15), Blame.USER, "user:SIGTERM"),
        (died(2, 2), Blame.USER, "user:SIGINT"),
        (died(2, 7), Blame.RANK, "crashed:SIGBUS"),
        (died(2, 6), Blame.RANK, "crashed:SIGABRT"),
        (died(2, 6, words=read_end(ECC, ())), Blame.RANK, "device:RuntimeError:CUDA error: uncorrectable ECC error encountered"),
        (died(2, 40), Blame.RANK, "killed:signal 40"),
    ],
)  # fmt: skip
def test_each_way_to_end_has_its_blame_and_signature(
    end: RankEnd, blame: Blame, signature: str
) -> None:
    finding = found(end, *victims_of(0, 1), stopped(3))

    assert (finding.ranks, finding.victims) == ((2,), (0, 1, 3))
    assert (finding.blame, finding.signature) == (blame, signature)


def test_killed_data_loader_is_an_out_of_memory_kill_where_one_was_counted() -> None:
    loader = ErrorText("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed.", "")

    finding = found(
        RankEnd(1, 1.0, 1, None, oom_killed=True, words=read_end(loader, ())), *victims_of(0, 2, 3)
    )

    assert (finding.blame, finding.signature) == (Blame.MEMORY, "oom_killed")


def test_victim_beside_an_out_of_memory_kill_stays_a_victim() -> None:
    victim = RankEnd(1, 1.0, 1, None, oom_killed=True, words=read_end(RESET, ()))

    assert found(victim, died(2, 9, age_s=1.0, oom_killed=True)).ranks == (2,)


def test_same_exception_on_every_rank_accuses_no_machine() -> None:
    ends = [
        exited(rank, 1, ErrorText("ValueError", f"bad batch {rank}", ""), age_s=3.0 - rank)
        for rank in range(4)
    ]

    finding = found(*ends)

    assert (finding.blame, finding.ranks, finding.victims) == (Blame.PROGRAM, (), ())
    assert finding.summary == "all 4 ranks ended alike: ValueError: bad batch 0"
    assert finding.since_age_s == 3.0


def test_rank_stopped_after_it_had_told_the_same_exception_counts_among_them() -> None:
    finding = found(*[exited(r, 1, BAD_BATCH) for r in (0, 1, 2)], stopped(3, BAD_BATCH))

    assert (finding.blame, finding.ranks) == (Blame.PROGRAM, ())


def test_same_exception_on_all_ranks_but_one_names_them() -> None:
    finding = found(*[exited(rank, 1, BAD_BATCH) for rank in (0, 1, 2)], stopped(3))

    assert (finding.blame, finding.ranks, finding.victims) == (Blame.PROGRAM, (0, 1, 2), (3,))


def test_all_ranks_killed_at_once_accuse_nobody() -> None:
    assert found(*[died(rank, 9) for rank in range(4)]).blame is Blame.NOBODY


@pytest.mark.parametrize(
    ("end", "blame", "ranks"),
    [
        (exited(0, 1, BAD_BATCH), Blame.PROGRAM, ()),  # no peer that it could differ from
        (died(0, 9), Blame.RANK, (0,)),
        (died(0, 11), Blame.RANK, (0,)),
    ],
)
def test_job_of_one_rank_is_judged(end: RankEnd, blame: Blame, ranks: tuple[int, ...]) -> None:
    finding = found(end, world_size=1)

    assert (finding.blame, finding.ranks) == (blame, ranks)


def test_lost_peers_without_a_culprit_accuse_nobody() -> None:
    finding = found(*victims_of(0, 1, 2), stopped(3))

    assert (finding.blame, finding.ranks) == (Blame.COMMUNICATION, ())
    assert finding.victims == (0, 1, 2, 3)
    assert finding.signature == "communication"


def test_rank_that_ended_early_with_0_explains_lost_peers() -> None:
    finding = found(exited(2, 0, age_s=2.0), *victims_of(0, 1, 3))

    assert (finding.blame, finding.ranks) == (Blame.PROGRAM, ())
    assert finding.signature == "communication:early_end"
    assert finding.summary == "rank 2 ended with exit code 0 while others still needed it"


@pytest.mark.parametrize("signal", [6, 13])
def test_rank_that_aborts_because_it_lost_a_peer_is_a_victim(signal: int) -> None:
    finding = found(
        died(0, signal, age_s=2.0, words=read_end(WATCHDOG, ())), exited(2, 1, BAD_BATCH)
    )

    assert (finding.ranks, finding.victims) == ((2,), (0,))


def test_rank_whose_reader_is_gone_blames_no_node_and_yields_to_every_cause() -> None:
    alone = found(died(0, 13))
    device = found(died(0, 13, age_s=2.0), exited(2, 1, ECC, age_s=1.0))
    worded = found(died(0, 13, words=read_end(BAD_BATCH, ())))

    assert (alone.blame, alone.signature, alone.summary) == (Blame.PROGRAM, "exit:SIGPIPE", "rank 0 failed: SIGPIPE")  # fmt: skip
    assert (device.ranks, device.blame, device.victims) == ((2,), Blame.RANK, (0,))
    assert worded.summary == "rank 0 failed: ValueError: bad batch 7"


def test_crash_after_a_lost_peer_is_a_culprit_only_where_no_other_is() -> None:
    crashed = died(0, 11, age_s=2.0, words=read_end(RESET, ()))

    assert found(crashed, died(2, 9)).ranks == (2,)
    assert found(crashed, *victims_of(1, 3)).ranks == (0,)


def test_request_to_end_beside_a_kill_is_its_consequence() -> None:
    finding = found(died(2, 9, age_s=1.0), died(0, 15, age_s=1.1))

    assert (finding.ranks, finding.blame) == ((2,), Blame.RANK)


def test_rank_that_asks_for_no_restart_outranks_an_earlier_failure() -> None:
    finding = found(died(0, 9, age_s=9.0), exited(3, DO_NOT_RETRY))

    assert (finding.ranks, finding.signature) == ((3,), "do_not_retry")
    assert finding.summary == "rank 3 asked not to be restarted: exit code 93"


def test_device_error_names_a_tie_with_an_exception() -> None:
    finding = found(exited(0, 1, BAD_BATCH), exited(1, 1, ECC), *victims_of(2, 3))

    assert finding.ranks == (0, 1)
    assert finding.signature.startswith("device:")


def test_error_is_read_from_the_last_lines_where_no_error_was_given() -> None:
    lines = ("Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: x")

    assert (
        found(RankEnd(1, 1.0, 1, None, words=read_end(None, lines))).signature
        == "exception:ValueError:x"
    )


def test_signal_death_is_not_judged_by_an_old_traceback() -> None:
    lines = ("Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: x")

    assert found(died(1, 9, words=read_end(None, lines))).signature == "killed:SIGKILL"


def test_exit_code_without_an_error_takes_its_cause_from_a_device_line() -> None:
    lines = ("step 1", "NCCL WARN Cuda failure 'uncorrectable ECC error encountered'")

    assert found(RankEnd(1, 1.0, 3, None, words=read_end(None, lines))).signature.startswith(
        "device:"
    )


def test_thousands_of_victims_are_a_few_lines_of_evidence() -> None:
    finding = found(died(5000, 9), *victims_of(*range(5000)), world_size=5001)

    assert len(finding.evidence) == 3
    assert len(finding.victims) == 5000
    assert all(len(line.text) < 1_000 for line in finding.evidence)


def test_evidence_is_bounded_when_every_rank_says_something_else() -> None:
    words = ["".join(letters) for letters in itertools.product("abcd", repeat=3)]
    ends = [
        exited(rank, 1, ErrorText("ValueError", word, ""), age_s=100.0 - rank)
        for rank, word in enumerate(words)
    ]

    finding = found(*ends, world_size=64)

    assert len(finding.evidence) == EVIDENCE_MAX
    assert finding.evidence[-1].text == "49 more lines are not shown"


def test_every_cause_that_a_culprit_can_have_has_a_blame() -> None:
    assert set(CLASSES) == set(FailureCause)


ERRORS = st.sampled_from([None, RESET, BAD_BATCH, ECC, ASSERT, CUDA_OOM, NO_MEMORY, WATCHDOG])
SIGNALS_SEEN = st.sampled_from([2, 6, 7, 9, 11, 13, 15, 40])
AGES_S = st.floats(0, 100)


@st.composite
def worlds(draw: st.DrawFn) -> list[RankEnd]:
    ends = []
    for rank in range(draw(st.integers(1, 6))):
        by_signal = draw(st.booleans())
        ends.append(
            RankEnd(
                rank,
                draw(AGES_S),
                None if by_signal else draw(st.sampled_from([0, 1, 3, 93, 137, 200])),
                draw(SIGNALS_SEEN) if by_signal else None,
                by_launcher=draw(st.booleans()),
                oom_killed=draw(st.booleans()),
                words=read_end(draw(ERRORS), draw(st.lists(st.text(max_size=20), max_size=3))),
                step=draw(st.none() | st.integers(0, 9)),
            )
        )
    return ends


@given(worlds(), st.randoms(use_true_random=False), st.integers(0, 3))
def test_finding_names_only_ranks_that_ended_and_no_order_of_them_changes_it(
    ends: list[RankEnd], random: Random, missing: int
) -> None:
    world_size = len(ends) + missing
    shuffled = random.sample(ends, len(ends))

    finding = detect_failed(ends, job_id="j", attempt=1, node="n", world_size=world_size)
    again = detect_failed(shuffled, job_id="j", attempt=1, node="n", world_size=world_size)

    assert finding == again
    if finding is not None:
        failed = {end.rank for end in ends if end.exit_code != 0}
        assert set(finding.ranks) <= failed
        assert set(finding.victims) <= failed
        assert not set(finding.ranks) & set(finding.victims)


@given(ERRORS, SIGNALS_SEEN, st.booleans(), st.integers(2, 6))
def test_same_end_of_all_ranks_blames_a_machine_only_for_a_device_error(
    error: ErrorText | None, signal: int, by_signal: bool, world_size: int
) -> None:
    ends = [
        RankEnd(
            rank,
            1.0,
            None if by_signal else 1,
            signal if by_signal else None,
            words=read_end(error, ()),
        )
        for rank in range(world_size)
    ]

    finding = found(*ends, world_size=world_size)

    if finding.blame is Blame.RANK:
        assert error is not None
        assert classify(error) is FailureCause.DEVICE


OWN_SOCKET = ErrorText(
    "ConnectionResetError",
    "[Errno 104] Connection reset by peer",
    'Traceback (most recent call last):\n  File "/home/a/train.py", line 3, in <module>\n    sock.recv(4)\n'
    "ConnectionResetError: [Errno 104] Connection reset by peer",
)


def test_broken_connection_is_the_cause_only_where_no_other_rank_has_one() -> None:
    broken = exited(0, 1, OWN_SOCKET, age_s=2.0)

    assert found(broken, exited(2, 1, ECC, age_s=1.9)).ranks == (2,)
    assert found(broken, died(2, 9, age_s=1.9)).ranks == (2,)
    assert found(broken).ranks == (0,)


def test_outage_of_a_service_and_a_full_file_system_are_nobodys_fault() -> None:
    away = ErrorText(
        "RuntimeError", "HTTPSConnectionPool(host='t', port=443): Max retries exceeded", ""
    )
    full = ErrorText("OSError", "[Errno 28] No space left on device", "")

    findings = [found(exited(1, 1, error), *victims_of(0, 2, 3)) for error in (away, full)]

    assert [(finding.blame, finding.symptom.kind.value) for finding in findings] == [
        (Blame.NOBODY, "service"),
        (Blame.NOBODY, "storage"),
    ]
    assert findings[0].summary.startswith("rank 1 failed first: RuntimeError: HTTPSConnectionPool")


def test_text_of_an_exit_and_what_threads_printed_stand_beside_the_end() -> None:
    words = SaidAtEnd(exit_text="config error: no such split", beside=("KeyError: 'x'",))

    finding = found(RankEnd(1, 1.0, 1, None, words=words))

    assert finding.summary == "rank 1 failed: exit code 1: config error: no such split"
    assert finding.signature == "exit:1"
    assert [line.text for line in finding.evidence][1:] == ["rank 1, beside it: KeyError: 'x'"]
