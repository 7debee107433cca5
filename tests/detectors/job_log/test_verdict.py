"""What a job's log says, by rule: which fact is the cause, whom it names, restart or stop."""

import re

import pytest

from detectors.failed.said_error import FailureCause
from detectors.finding import Blame
from detectors.job_log.kinds import KINDS, LogDecision, LogKind, StopRule, next_step
from detectors.job_log.lines import LogSource
from detectors.job_log.verdict import LogVerdict, diagnose_log

STEP = "step 10 loss 2.31"


def diagnose(*lines: str, name: str = "job.log") -> LogVerdict:
    text = "\n".join(lines)
    return diagnose_log([LogSource(name, text.encode().split(b"\n"))])


def traceback(error: str, *functions: str) -> str:
    frames = [
        f'  File "/w/train.py", line 7, in {name}\n    go()' for name in functions or ("main",)
    ]
    return "\n".join(("Traceback (most recent call last):", *frames, error))


def on(rank: int, text: str) -> str:
    return "\n".join(f"[rank{rank}]: {line}" for line in text.split("\n"))


LOST = traceback(
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:4433"
)


def table(rank: int, code: int, host: str = "node7") -> str:
    return f"""torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-05-21_15:43:03
  host      : {host}
  rank      : {rank} (local_rank: {rank % 8})
  exitcode  : {code} (pid: 14750)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"""


def test_rank_with_an_error_of_its_own_is_the_culprit_and_those_that_lost_it_are_victims() -> None:
    verdict = diagnose(STEP, on(0, LOST), on(2, traceback("ValueError: bad")), on(1, LOST))

    assert verdict.culprit_ranks == (2,)
    assert verdict.victims == (0, 1)
    assert verdict.decision is LogDecision.RESTART
    assert verdict.evidence[0].line == 9


def test_torchruns_root_cause_does_not_outrank_the_rank_that_printed_an_error() -> None:
    verdict = diagnose(STEP, on(3, traceback("ValueError: bad")), on(0, LOST), table(0, 1))

    assert verdict.culprit_ranks == (3,)


def test_killed_rank_is_named_by_torchruns_table_with_its_node() -> None:
    verdict = diagnose(STEP, on(0, LOST), table(13, -9))

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.KILLED, (13,))
    assert verdict.culprit_nodes == ("node7",)
    assert verdict.error_class is FailureCause.KILLED


def test_lost_peer_alone_names_nobody() -> None:
    verdict = diagnose(STEP, on(0, LOST), on(1, LOST))

    assert verdict.kind is LogKind.PEER_LOST
    assert verdict.culprit_ranks == ()
    assert verdict.decision is LogDecision.RESTART


def test_kernels_word_explains_the_errors_of_ranks_before_it() -> None:
    verdict = diagnose(
        STEP,
        on(5, traceback("RuntimeError: CUDA error: unspecified launch failure")),
        "[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.",
    )

    assert verdict.kind is LogKind.GPU_HARDWARE
    assert verdict.decision is LogDecision.RESTART


def test_xid_of_a_program_is_no_fault_of_the_device() -> None:
    verdict = diagnose(
        STEP,
        "[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 31, pid=77, Ch 00000008",
        on(5, traceback("RuntimeError: CUDA error: an illegal memory access was encountered")),
    )

    assert verdict.kind is LogKind.ILLEGAL_ACCESS
    assert verdict.culprit_ranks == (5,)


def test_time_limit_of_a_healthy_job_is_nobodys_fault() -> None:
    verdict = diagnose(
        STEP,
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2023-12-05T07:16:01 DUE TO TIME LIMIT ***",
    )

    assert (verdict.kind, verdict.blame) == (LogKind.TIME_LIMIT, Blame.USER)
    assert verdict.decision is LogDecision.RESTART


def test_cancelled_after_an_error_is_no_cause() -> None:
    verdict = diagnose(
        STEP,
        on(2, traceback("ValueError: bad")),
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2023-12-05T07:16:01 ***",
        "srun: error: n1: tasks 0-1,3: Terminated",
    )

    assert verdict.culprit_ranks == (2,)
    assert verdict.victims == (0, 1, 3)


def test_link_errors_name_a_node_only_if_all_share_it() -> None:
    warning = (
        "{0}:34:39 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer "
        "{1}<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
    )

    shared = diagnose(*(warning.format(f"node{n}", "10.0.0.9") for n in (1, 2, 3)))
    single = diagnose(warning.format("node1", "10.0.0.9"))

    assert shared.culprit_nodes == ("10.0.0.9",)
    assert single.culprit_nodes == ()


@pytest.mark.parametrize(
    ("error", "functions"),
    [
        ("NameError: name 'modle' is not defined", ("main",)),
        ("ModuleNotFoundError: No module named 'einops'", ("<module>",)),
        ("TypeError: forward() missing 1 required positional argument: 'mask'", ("main",)),
        ("KeyError: 'hidden_size'", ("build_model",)),
        ("AssertionError: world size (6) is not divisible by tensor_parallel (4)", ("main",)),
        ("omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct", ("main",)),
        ("yaml.scanner.ScannerError: mapping values are not allowed here", ("read_settings",)),
        ("RuntimeError: Error(s) in loading state_dict for GPT:", ("load",)),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", ("load",)),
    ],
)
def test_error_of_the_program_before_any_step_stops(error: str, functions: tuple[str, ...]) -> None:
    start = "world_size: 2"

    verdict = diagnose(start, *(on(rank, traceback(error, *functions)) for rank in (0, 1)))

    assert verdict.decision is LogDecision.STOP
    assert verdict.culprit_ranks == ()  # all ranks had it: no machine is to blame


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param((STEP, on(1, traceback("KeyError: 'labels'"))), id="after steps"),
        pytest.param(
            (on(1, traceback("KeyError: 'labels'", "__getitem__")),), id="in the loop over data"
        ),
        pytest.param(
            (on(3, traceback("KeyError: 'labels'")), on(0, LOST)), id="other ranks got further"
        ),
        pytest.param(
            (on(1, traceback("ImportError: libcudart.so.12: cannot open shared object file")),),
            id="a node's library",
        ),
        pytest.param(
            (on(3, traceback("ModuleNotFoundError: No module named 'x'")), on(0, LOST)),
            id="a module that one rank lacks",
        ),
        pytest.param(
            (
                on(
                    1,
                    traceback("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'"),
                ),
            ),
            id="a path that a mount may have",
        ),
        pytest.param(
            (
                on(
                    1,
                    traceback(
                        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
                    ),
                ),
            ),
            id="an empty file",
        ),
        pytest.param(
            (on(1, traceback("OSError: [Errno 28] No space left on device")),), id="a full disk"
        ),
        pytest.param(
            (
                on(
                    1,
                    traceback(
                        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
                    ),
                ),
            ),
            id="device memory that another process may hold",
        ),
        pytest.param(
            (
                on(
                    1,
                    traceback(
                        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
                    ),
                ),
            ),
            id="a damaged checkpoint",
        ),
    ],
)
def test_doubt_restarts(lines: tuple[str, ...]) -> None:
    assert diagnose(*lines).decision is LogDecision.RESTART


def test_device_memory_that_the_program_alone_fills_before_a_step_stops() -> None:
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "79.15 GiB of which 1.20 GiB is free. Of the allocated memory 76.00 GiB is allocated by PyTorch"
    )

    assert diagnose(on(1, traceback(error))).decision is LogDecision.STOP
    assert diagnose(STEP, on(1, traceback(error))).decision is LogDecision.RESTART


def test_same_error_in_two_attempts_stops() -> None:
    error = on(1, traceback("KeyError: 'labels'"))
    again = "INFO: [default] Worker group FAILED. 2/3 attempts left; will restart worker group"

    twice = diagnose(STEP, error, again, STEP, error)
    other = diagnose(STEP, error, again, STEP, on(1, traceback("KeyError: 'text'")))

    assert twice.decision is LogDecision.STOP
    assert other.decision is LogDecision.RESTART


def test_exit_code_93_stops() -> None:
    verdict = diagnose(STEP, table(2, 93))

    assert (verdict.decision, verdict.error_class) == (LogDecision.STOP, FailureCause.DO_NOT_RETRY)


def test_healthy_log_is_unknown() -> None:
    verdict = diagnose(*(f"step {n} loss {n / 7}" for n in range(30)))

    assert verdict.decision is LogDecision.UNKNOWN
    assert verdict.is_training_log


@pytest.mark.parametrize(
    "line",
    [
        '10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.0" 500 23',
        "Jan  1 00:00:01 host systemd[1]: Started Daily apt download activities.",
        "[ 1234.567] EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "",
    ],
)
def test_log_of_something_else_is_no_training_log(line: str) -> None:
    verdict = diagnose(*([line] * 20))

    assert not verdict.is_training_log
    assert verdict.decision is LogDecision.UNKNOWN


def test_files_of_ranks_are_read_together() -> None:
    sources = [
        LogSource("attempt_0/0/stderr.log", LOST.encode().split(b"\n")),
        LogSource("attempt_0/1/stderr.log", traceback("ValueError: bad").encode().split(b"\n")),
        LogSource("attempt_0/1/stdout.log", [STEP.encode()]),
    ]

    verdict = diagnose_log(sources)

    assert (verdict.culprit_ranks, verdict.victims) == ((1,), (0,))
    assert verdict.evidence[0].file == "attempt_0/1/stderr.log"


def test_binary_data_says_nothing_and_breaks_nothing() -> None:
    verdict = diagnose_log([LogSource("core", [bytes(range(256)) * 40] * 50)])

    assert verdict.decision is LogDecision.UNKNOWN


@pytest.mark.parametrize(
    "error",
    [
        "AttributeError: 'NoneType' object has no attribute 'view'",
        "TypeError: 'NoneType' object is not subscriptable",
    ],
)
def test_missing_value_in_a_log_without_steps_is_no_reason_to_stop(error: str) -> None:
    verdict = diagnose("training ...", traceback(error, "main", "step"))

    assert (verdict.kind, verdict.decision) == (LogKind.TYPE_ERROR, LogDecision.RESTART)


def test_batch_of_another_size_in_a_log_without_steps_is_no_reason_to_stop() -> None:
    sizes = "The size of tensor a (32) must match the size of tensor b (31) at non-singleton dimension 0"

    verdict = diagnose("training ...", traceback(f"RuntimeError: {sizes}", "main", "step"))

    assert (verdict.kind, verdict.decision) == (LogKind.SHAPE_MISMATCH, LogDecision.RESTART)


@pytest.mark.parametrize(
    "error",
    [
        "TypeError: unsupported operand type(s) for +: 'Tensor' and 'NoneType'",
        "TypeError: '>' not supported between instances of 'str' and 'int'",
        "TypeError: string indices must be integers",
        "AttributeError: 'list' object has no attribute 'to'",
    ],
)
def test_error_of_a_value_stops_only_where_all_ranks_have_it_or_the_set_up_does(error: str) -> None:
    alone = diagnose("training ...", traceback(error, "main", "step"))
    every = diagnose(
        *(
            f"[rank{r}]: {line}"
            for r in range(4)
            for line in traceback(error, "main", "step").split("\n")
        )
    )
    setup = diagnose("training ...", traceback(error, "main", "build_model"))

    assert [each.decision for each in (alone, every, setup)] == [
        LogDecision.RESTART,
        LogDecision.STOP,
        LogDecision.STOP,
    ]


@pytest.mark.parametrize(
    ("line", "rank", "kind"),
    [
        ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.", 2, LogKind.BUS_ERROR),
        ("[rank: 5] Child process with PID 8170 terminated with code -9.", 5, LogKind.KILLED),
        ("Global rank 1 (PID 77) exited with code 139", 1, LogKind.SEGFAULT),
        ("ProcessExitedException: process 3 terminated with exit code 17", 3, LogKind.EXIT_CODE),
    ],
)
def test_launchers_word_names_the_rank_that_ended(line: str, rank: int, kind: LogKind) -> None:
    verdict = diagnose(STEP, line)

    assert (verdict.culprit_ranks, verdict.kind) == ((rank,), kind)


def test_local_ranks_end_names_no_rank_of_the_job() -> None:
    assert diagnose(STEP, "local rank 1 exited with code 139").culprit_ranks == ()


def test_kernels_line_names_its_host_alone_and_else_the_only_node_of_the_job() -> None:
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    comm = "n7:42:43 [0] NCCL INFO comm 0x55 rank 0 nranks 1 cudaDev 0 busId 1b000 - Init COMPLETE"

    hosted = diagnose(STEP, comm, f"Mar  1 10:12:44 gpu-b17 kernel: {xid}")
    bare = diagnose(STEP, comm, f"[Sat Mar  1 10:12:44 2025] {xid}")

    assert (hosted.culprit_nodes, bare.culprit_nodes) == (("gpu-b17",), ("n7",))


def test_watchdogs_line_of_a_devices_error_names_the_rank() -> None:
    verdict = diagnose(
        STEP,
        "[E ProcessGroupNCCL.cpp:916] [Rank 6] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
    )

    assert (verdict.culprit_ranks, verdict.kind) == ((6,), LogKind.GPU_HARDWARE)


def test_one_rank_without_device_memory_whose_peers_wait_is_started_again() -> None:
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB. Of the allocated memory 75.13 GiB is allocated by PyTorch"
    verdict = diagnose(
        *(f"[rank3]: {line}" for line in traceback(memory).split("\n")),
        "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.",
    )

    assert (verdict.culprit_ranks, verdict.decision) == ((3,), LogDecision.RESTART)


@pytest.mark.parametrize("kind", [kind for kind in LogKind if kind is not LogKind.NO_FAILURE])
def test_the_next_step_fits_the_decision(kind: LogKind) -> None:
    restart = next_step(kind, LogDecision.RESTART)

    assert re.match(r"(?:restart|start again|ask)\b", restart) or restart.endswith("then restart")
    if KINDS[kind].stop is not StopRule.NEVER:
        assert "restart" not in next_step(kind, LogDecision.STOP)


def test_a_none_of_one_rank_asks_for_a_restart_before_a_correction() -> None:
    verdict = diagnose(
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/home/user/train.py", line 9, in train_step',
        "[rank1]:     loss = batch['x'].sum()",
        "[rank1]: TypeError: 'NoneType' object is not subscriptable",
        "[rank0]: RuntimeError: Connection closed by peer [10.0.0.7]:51234",
    )

    assert verdict.decision is LogDecision.RESTART
    assert verdict.next_step == "restart; if it comes again, correct the line that the error names"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (
            ["GPUassert: an illegal memory access was encountered kernel.cu 41"],
            LogKind.ILLEGAL_ACCESS,
        ),
        (
            ["train: src/loader.cc:88: void load(const char*): Assertion `size > 0' failed."],
            LogKind.ABORTED,
        ),
        (
            ["E tensorflow/posix_file_system.cc:56] stat() failed: Stale file handle"],
            LogKind.STORAGE_ERROR,
        ),
    ],
)
def test_programs_in_c_end_in_their_own_words(lines: list[str], kind: LogKind) -> None:
    verdict = diagnose("epoch 1", *lines)

    assert (verdict.kind, verdict.decision) == (kind, LogDecision.RESTART)


def test_assertion_of_a_device_is_no_end_of_a_program_in_c() -> None:
    line = (
        "../aten/src/ATen/native/cuda/IndexKernel.cu:92: operator(): block: [22,0,0], thread: [64,0,0] "
        'Assertion `index < sizes[i] && "index out of bounds"` failed.'
    )

    verdict = diagnose("epoch 1", line)

    assert verdict.kind is LogKind.NO_FAILURE


@pytest.mark.parametrize(
    ("path", "decision"),
    [
        ("/opt/site-packages/torch/distributed/fsdp/_init_utils.py", LogDecision.STOP),
        ("/w/data.py", LogDecision.RESTART),
    ],
)
def test_value_that_pytorchs_wrapper_refuses_fails_at_each_start(
    path: str, decision: LogDecision
) -> None:
    error = f'Traceback (most recent call last):\n  File "{path}", line 7, in _check\n    go()\nValueError: the module has no GPU'

    assert diagnose(error).decision is decision
