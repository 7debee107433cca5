"""The texts of the gloo and store rows are what torch 2.13.0+cpu wrote, 3 ranks on one machine:
rank 2 killed, raising, silent for longer than the group's time-out; a key that never comes.
CUDA and NCCL texts are those of the issues and API pages that `ROWS` names."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.failed.error_classes import (
    CLASSES,
    classify,
    find_device_line,
    may_be_peer,
    read_end,
)
from detectors.failed.error_rows import ROWS
from detectors.failed.error_text import (
    ELASTIC_CHARS_MAX,
    LINES_MAX,
    MESSAGE_CHARS_MAX,
    TRACEBACK_CHARS_MAX,
    ErrorText,
    _find_errors,
    error_line,
    fingerprint,
    parse_elastic_error,
    parse_error,
    read_frames,
    read_parts,
    read_printed,
)
from detectors.failed.lasting_errors import comes_again
from detectors.failed.loading_error import LoadingVerdict, judge_loading
from detectors.failed.said_error import FailureCause
from tests.support.error_texts import DIRECT, FRAME, HEADER, error_in, traceback_of

DURING = "During handling of the above exception, another exception occurred:"
GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"


# What PyTorch 2.11 puts behind each CUDA error, as seen on an H200.
TRAILER = """
Search for `cudaError...' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("an illegal memory access was encountered", FailureCause.KERNEL_FAULT),
        ("misaligned address", FailureCause.KERNEL_FAULT),
        ("unspecified launch failure", FailureCause.KERNEL_FAULT),
        ("uncorrectable ECC error encountered", FailureCause.DEVICE),
        ("device-side assert triggered", FailureCause.PROGRAM),
    ],
)
def test_the_advice_behind_each_cuda_error_hides_no_cause(said: str, cause: FailureCause) -> None:
    lines = traceback_of(f"torch.AcceleratorError: CUDA error: {said}{TRAILER}")

    assert classify(error_in(*lines)) is cause


def test_last_traceback_of_several_is_the_error() -> None:
    lines = [*traceback_of("KeyError: 'a'"), "epoch 2", *traceback_of("ValueError: bad batch 7")]

    error = error_in(*lines, "", "tracker: done")

    assert error == ErrorText(
        "ValueError", "bad batch 7", "\n".join([HEADER, *FRAME, "ValueError: bad batch 7"])
    )


@pytest.mark.parametrize("chain", [DIRECT, DURING])
def test_chained_traceback_is_kept_whole_and_its_last_error_is_the_error(chain: str) -> None:
    lines = traceback_of("KeyError: 'a'", "ring.LostError: no word", chain=chain)

    error = error_in("step 3", *lines)

    assert (error.type_name, error.message) == ("LostError", "no word")
    assert error.traceback == "\n".join(lines)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["[rank1]: " + line for line in traceback_of("ValueError: x")], "ValueError: x"),
        (["[default0]:[rank12]: " + line for line in traceback_of("ValueError: x")], "ValueError: x"),
        (list(traceback_of("ValueError: x")[1:]), "ValueError: x"),  # cut off at the start
        (['  File "a.py", line 3', "    x = = 1", "        ^", "SyntaxError: invalid"], "SyntaxError: invalid"),
        (traceback_of("torch.OutOfMemoryError: CUDA out of memory."), "OutOfMemoryError: CUDA out of memory."),
        (traceback_of("__main__.f.<locals>.Odd: x"), "Odd: x"),
        (traceback_of("AssertionError"), "AssertionError"),
        (traceback_of("ValueError: first\nsecond"), "ValueError: first"),
        (["\x1b[31mTraceback (most recent call last):\x1b[0m", *FRAME, "\x1b[1mValueError\x1b[0m: x"], "ValueError: x"),
        (["terminate called after throwing an instance of 'c10::Error'", "  what():  CUDA error: bad"], "Error: CUDA error: bad"),
        (["terminate called after throwing an instance of 'std::bad_alloc'", "  what():  std::bad_alloc"], "bad_alloc: std::bad_alloc"),
        (["Fatal Python error: Segmentation fault", "", "Current thread 0x00007f (most recent call first):", '  File "a.py", line 3 in f'], "Fatal Python error: Segmentation fault"),
        (["/usr/bin/python3.11: can't open file '/x/train.py': [Errno 2] No such file"], "can't open file '/x/train.py': [Errno 2] No such file"),
        (["/usr/bin/python3: No module named tran"], "No module named tran"),
    ],
)  # fmt: skip
def test_each_form_of_an_error_is_read(lines: list[str], expected: str) -> None:
    assert error_line(error_in(*lines)) == expected


@pytest.mark.parametrize(
    "aftermath",
    [
        ["terminate called without an active exception"],
        ["Fatal Python error: Aborted", "", "Current thread 0x1 (most recent call first):"],
    ],
)
def test_abort_after_an_error_does_not_hide_the_error(aftermath: list[str]) -> None:
    assert error_in(*traceback_of("ValueError: x"), *aftermath).type_name == "ValueError"


def test_abort_long_after_a_handled_error_is_a_story_of_its_own() -> None:
    lines = [
        *traceback_of("ConnectionError: tracker"),
        *["step"] * 30,
        "Fatal Python error: Aborted",
    ]

    assert error_in(*lines).message == "Aborted"


@pytest.mark.parametrize("lines", [[], ["step 1"], [HEADER], [HEADER, *FRAME], [HEADER, "[W] x"]])
def test_output_without_an_error_has_none(lines: list[str]) -> None:
    assert parse_error(lines) is None


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (GLOO + "pair.cc:537] Read error [127.0.0.1]:15012: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application.", FailureCause.COMMUNICATION),
        (GLOO + "pair.cc:553] Connection closed by peer [127.0.0.1]:7318. This is typically caused by a remote worker crashing.", FailureCause.COMMUNICATION),
        (GLOO + "unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete", FailureCause.COMMUNICATION),
        ("torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//nokey", FailureCause.COMMUNICATION),
        ("torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying to connect to (a, 29500).", FailureCause.COMMUNICATION),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, remote process exited or there was a network error, NCCL version 2.20.5\nncclRemoteError: A call failed", FailureCause.COMMUNICATION),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 214 'uncorrectable ECC error encountered'", FailureCause.DEVICE),
        ("torch.distributed.DistBackendError: NCCL error\nLast error:\nCuda failure 2 'out of memory'", FailureCause.DEVICE_MEMORY),
        ("torch.distributed.DistBackendError: NCCL error, invalid usage\nncclInvalidUsage: x\nDuplicate GPU detected", FailureCause.PROGRAM),
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running", FailureCause.PROGRAM),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", FailureCause.DEVICE),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", FailureCause.DEVICE),
        ("RuntimeError: GPU has fallen off the bus", FailureCause.DEVICE),
        ("RuntimeError: No CUDA GPUs are available", FailureCause.DEVICE),
        ("RuntimeError: CUDA error: unspecified launch failure", FailureCause.KERNEL_FAULT),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", FailureCause.KERNEL_FAULT),
        ("RuntimeError: CUDA error: device-side assert triggered", FailureCause.PROGRAM),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", FailureCause.DEVICE_MEMORY),
        ("MemoryError", FailureCause.HOST_MEMORY),
        ("OSError: [Errno 12] Cannot allocate memory", FailureCause.HOST_MEMORY),
        ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ", FailureCause.HOST_MEMORY),
        ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", FailureCause.HOST_MEMORY),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='s3', port=443): Connection refused", FailureCause.SERVICE),
        ("BrokenPipeError: [Errno 32] Broken pipe", FailureCause.EXCEPTION),
        ("TimeoutError: timed out", FailureCause.EXCEPTION),
        ("NameError: name 'modle' is not defined", FailureCause.PROGRAM),
        ("KeyboardInterrupt", FailureCause.USER),
        ("ValueError: bad batch 7", FailureCause.EXCEPTION),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/a'", FailureCause.EXCEPTION),
    ],
)  # fmt: skip
def test_each_known_error_has_its_class(said: str, cause: FailureCause) -> None:
    assert classify(error_in(*traceback_of(said))) is cause


def test_wrapped_error_has_the_class_of_what_it_was_raised_from() -> None:
    lost = traceback_of(f"{GLOO}pair.cc:553] Connection closed by peer [::1]:7", "PeerLostError: x")

    assert classify(error_in(*lost)) is FailureCause.COMMUNICATION


def test_broken_connection_of_the_programs_own_is_an_exception_that_may_be_a_peers() -> None:
    own = error_in(*traceback_of("ConnectionResetError: it closed", "ring.PeerLostError: no word"))

    assert (classify(own), may_be_peer(own)) == (FailureCause.EXCEPTION, True)
    assert not may_be_peer(error_in(*traceback_of("ValueError: bad batch 7")))


@pytest.mark.parametrize(
    "errno",
    [
        "[Errno 100] Network is down",
        "[Errno 101] Network is unreachable",
        "[Errno 113] No route to host",
        "Multiple exceptions: [Errno 113] Connect call failed ('10.0.0.3', 29500)",
    ],
)
def test_a_host_without_a_route_is_the_networks_fault_however_often_it_comes(errno: str) -> None:
    own = error_in(*traceback_of(f"OSError: {errno}"))

    assert classify(own) is FailureCause.COMMUNICATION, (
        "else two of them end the job as the program's"
    )


def test_noise_after_an_error_does_not_change_its_class() -> None:
    noise = "[W1121 TCPStore.cpp:125] recvValue failed: Connection was likely closed."

    assert classify(error_in(*traceback_of("ValueError: x"), noise)) is FailureCause.EXCEPTION


def test_source_line_in_a_frame_does_not_change_the_class() -> None:
    lines = [
        HEADER,
        '  File "a.py", line 1, in f',
        '    log("Connection reset by peer")',
        "ValueError: x",
    ]

    assert classify(error_in(*lines)) is FailureCause.EXCEPTION


def test_every_row_names_its_source() -> None:
    sources = [*(row.source for row in ROWS), *(row.source for row in CLASSES.values())]

    assert all(len(source) > 10 for source in sources)


def test_device_line_is_found_in_output_without_an_error() -> None:
    lines = ["step 4", "n1:7:8 [0] NCCL WARN Cuda failure 'uncorrectable ECC error'", "bye"]

    assert find_device_line(lines) == lines[1]
    assert find_device_line(["step 4"]) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (GLOO + "pair.cc:537] Read error [127.0.0.1]:15012: reset", GLOO + "pair.cc:537] Read error [::ffff:10.0.0.7]:9: reset"),
        ("ValueError: bad batch 5 at 0x7ffe12 on rank 1", "ValueError: bad batch 71 at 0x6a on rank 3"),
        ("OSError: no space in /tmp/tmpx8_ab1/part-3.pt", "OSError: no space in /tmp/tmpq0/part-12.pt"),
        ("ValueError: loss is nan", "ValueError: loss is -3.5e+10"),
        ("ValueError: pid 12, id 3f2a9c01", "ValueError: pid 4711, id 77a0b3ce"),
        ("ValueError: run 123e4567-e89b-12d3-a456-426614174000", "ValueError: run 00000000-e89b-12d3-a456-426614174999"),
    ],
)  # fmt: skip
def test_same_error_of_two_ranks_has_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint(error_in(*traceback_of(one))) == fingerprint(error_in(*traceback_of(other)))


def test_different_errors_have_different_fingerprints() -> None:
    said = ["ValueError: bad batch", "ValueError: bad label", "KeyError: bad batch"]

    assert len({fingerprint(error_in(*traceback_of(text))) for text in said}) == 3


def elastic(message: object, stack: object = "") -> str:
    extra = {"py_callstack": stack, "timestamp": "1690000000"}
    return json.dumps({"message": {"message": message, "extraInfo": extra}})


def test_elastic_error_file_gives_the_same_error_as_the_traceback() -> None:
    stack = "\n".join(traceback_of("ValueError: bad batch 7")) + "\n"

    assert parse_elastic_error(elastic("ValueError: bad batch 7", stack)) == error_in(
        *stack.splitlines()
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"message": "ValueError: old form"}', "ValueError: old form"),
        ('{"message": "no type here"}', "no type here"),
        (elastic(None, "\n".join(traceback_of("OSError: x"))), "OSError: x"),
    ],
)
def test_each_form_of_an_elastic_error_file_is_read(text: str, expected: str) -> None:
    error = parse_elastic_error(text)

    assert error is not None
    assert error_line(error) == expected


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '{"message": 3}', '{"message": {}}', "[" * 100_000,
     "9" * 10_000, '{"message": "' + "a" * ELASTIC_CHARS_MAX + '"}'],
)  # fmt: skip
def test_elastic_error_file_with_anything_else_is_no_error(text: str) -> None:
    assert parse_elastic_error(text) is None


def test_error_from_outside_is_bounded_and_can_be_written() -> None:
    error = parse_elastic_error(elastic("ValueError: \ud800" + "a" * 5_000, "b" * 50_000))

    assert error is not None
    assert len(error.message) == MESSAGE_CHARS_MAX
    assert len(error.traceback) == TRACEBACK_CHARS_MAX
    assert (error.message + error.traceback).encode("utf-8")


def test_endless_output_is_read_from_its_end() -> None:
    lines = [*traceback_of("ValueError: old"), *["step"] * LINES_MAX]

    assert parse_error(lines) is None


STARTS = [
    HEADER,
    "  + Exception Group Traceback (most recent call last):",
    "Fatal Python error: Aborted",
    "terminate called after throwing an instance of 'a::B'",
    "terminate called without an active exception",
    "python: No module named x",
]
OTHERS = [*FRAME, DIRECT, DURING, "", "ValueError: x", "Odd", "[rank1]: x", "  | x", "  what():  x"]
PIECES = st.sampled_from([*STARTS, *OTHERS])


@given(st.lists(PIECES | st.text(max_size=60), max_size=60))
def test_no_output_makes_the_parser_raise_or_pass_its_bounds(lines: list[str]) -> None:
    error = parse_error(lines)

    find_device_line(lines)
    if error is not None:
        assert classify(error) in FailureCause
        assert len(fingerprint(error)) <= 200
        assert error_line(error)


@given(st.text(max_size=300) | st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["message", "extraInfo", "py_callstack"]), inner)).map(json.dumps))  # fmt: skip
def test_no_elastic_error_file_makes_the_parser_raise(text: str) -> None:
    error = parse_elastic_error(text)

    assert error is None or classify(error) in FailureCause


MISMATCH = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 12, in <module>
[rank1]:     dist.all_reduce(x)
[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.3
[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
[rank1]: Last error:
[rank1]: {last}"""
SAYS = "Mismatched NCCL version detected : rank 0 version 22703 rank 1 version 22105"


def test_what_nccl_says_below_the_first_line_is_for_people_and_tells_no_error_from_another() -> (
    None
):
    said, other, silent = (
        read_end(None, MISMATCH.format(last=last).splitlines()).error
        for last in (SAYS, SAYS.replace("rank 1", "rank 9"), "")
    )

    assert said is not None
    assert other is not None
    assert silent is not None
    assert said.line.startswith("DistBackendError: NCCL error in: NCCLUtils.cpp:77, invalid usage")
    assert said.line.endswith(f", NCCL version 2.27.3; NCCL says: {SAYS}")
    assert (said.cause, silent.cause) == (FailureCause.MIXED_NCCL, FailureCause.PROGRAM)
    assert silent.line == said.line.partition("; NCCL")[0]
    assert said.fingerprint == other.fingerprint == silent.fingerprint


def test_nothing_else_with_these_words_is_taken_for_nccls() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in <module>',
        "ValueError: x",
        "Last error:",
        "y",
    ]

    said = read_end(None, lines).error

    assert said is not None
    assert said.line == "ValueError: x"


# Last lines of torch 2.13.0+cpu: mp.spawn, and torchrun started by a script, each with a killed child.
SPAWN_KILLED = traceback_of(
    "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL"
)
TORCHRUN_KILLED = [
    *traceback_of("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "),
    "=======================================================",
    "train.py FAILED",
    "-------------------------------------------------------",
    "Failures:",
    "  <NO_OTHER_FAILURES>",
    "-------------------------------------------------------",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-11-28_20:00:00",
    "  host      : node1",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -9 (pid: 7318)",
    "  error_file: <N/A>",
    "  traceback : Signal 9 (SIGKILL) received by PID 7318",
    "=======================================================",
]
LAUNCH_KILLED = traceback_of(
    "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>."
)


@pytest.mark.parametrize("lines", [SPAWN_KILLED, TORCHRUN_KILLED, LAUNCH_KILLED])
def test_killed_child_of_a_rank_that_starts_ranks_is_a_kill(lines: list[str]) -> None:
    assert classify(error_in(*lines)) is FailureCause.KILLED


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("  exitcode  : -9 (pid: 7318)", "  exitcode  : 1 (pid: 7318)"),
        ("  exitcode  : -9 (pid: 7318)", "  exitcode  : -11 (pid: 7318)"),
    ],
)
def test_child_that_ended_by_itself_is_no_kill(line: str, other: str) -> None:
    lines = [other if one == line else one for one in TORCHRUN_KILLED]

    assert classify(error_in(*lines)) is FailureCause.EXCEPTION


def test_child_that_was_asked_to_end_is_no_error_of_the_program() -> None:
    lines = [one.replace("-9 (", "-15 (") for one in TORCHRUN_KILLED]

    assert classify(error_in(*lines)) is FailureCause.USER


def test_only_the_last_error_of_a_chain_tells_of_a_killed_child() -> None:
    lines = [*SPAWN_KILLED, "", DURING, "", *traceback_of("ValueError: no log folder")]

    assert classify(error_in(*lines)) is FailureCause.EXCEPTION


@pytest.mark.parametrize("unit", ["0", "116", "load", "/", "checkpoint", "a.", " "])
def test_words_of_a_stranger_are_read_in_a_time_that_grows_with_their_number(unit: str) -> None:
    text = (unit * 400_000)[:400_000]  # hours, if it grew with the square
    frame = f'  File "/{text}", line 3, in {text}\n    {text}\n'
    error = ErrorText(
        "RuntimeError",
        text[:2_000],
        f"Traceback (most recent call last):\n{frame}RuntimeError: {text}",
    )

    said = read_end(error, ())

    assert said.error is not None
    assert all(
        len(one.function) <= 400 for frames in read_frames(error.traceback) for one in frames
    )
    assert judge_loading(error) in LoadingVerdict


BOX = [
    "╭────────────── Traceback (most recent call last) ──────────────╮",
    "│ /home/u/train.py:40 in <module>                               │",
    "│ ❱ 40 main()                                                   │",
    "│ /opt/conda/lib/python3.11/site-packages/wandb/sdk             │",
    "│ /wandb_init.py:1195 in init                                   │",
    "│ ╭───── locals ─────╮                                          │",
    "│ │ e = KeyError('x')│                                          │",
    "│ ╰──────────────────╯                                          │",
    "╰───────────────────────────────────────────────────────────────╯",
    "CommError: Run initialization has timed out after 90.0 sec. Please try ",
    "increasing the timeout.",
]


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "(Worker pid=892962, ip=10.0.0.7) ", "[1,3]<stderr>:"])  # fmt: skip
def test_a_box_of_rich_is_read_as_the_traceback_in_it(prefix: str) -> None:
    error = error_in(*(prefix + line for line in BOX))

    assert error.type_name == "CommError"
    [part] = read_parts(error)
    assert [(frame.path, frame.function) for frame in part.frames] == [
        ("/opt/conda/lib/python3.11/site-packages/wandb/sdk/wandb_init.py", "init"),
        ("/home/u/train.py", "<module>"),
    ]


def test_record_that_points_to_an_error_above_is_read_as_that_error() -> None:
    record = ErrorText("RuntimeError", "Engine core failed. See root cause above.", "")
    printed = traceback_of("RuntimeError: CUDA error: uncorrectable ECC error encountered")

    assert classify(read_printed(record, printed)) is FailureCause.DEVICE
    assert read_printed(record, ["step 7"]) is record


def test_a_box_without_its_end_is_no_error() -> None:
    assert parse_error(BOX[:4]) is None


def test_logurus_marks_are_taken_from_a_traceback() -> None:
    error = error_in(
        "2026-11-29 12:28:05 | ERROR    | core.launch:98 - An error has been caught in function 'launch'",
        "Traceback (most recent call last):",
        "",
        '  File "tools/train.py", line 125, in <module>',
        "    launch(",
        "    └ <function launch at 0x7f2a92847700>",
        "",
        '> File "core/launch.py", line 98, in launch',
        "    main_func(*args)",
        "    │          └ (1, 2)",
        "",
        "KeyError: 'labels'",
    )

    assert (error.type_name, error.message) == ("KeyError", "'labels'")
    assert [frame.path for frame in read_parts(error)[0].frames] == [
        "core/launch.py",
        "tools/train.py",
    ]


@pytest.mark.parametrize(
    "refused",
    ["Could not override 'model.nlayers'.", "Cannot find primary config 'trian'. Check that it's in your config search path."],
)  # fmt: skip
def test_what_hydra_refuses_without_a_traceback_comes_again(refused: str) -> None:
    last = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."

    error = error_in("step 0", refused, "Key 'nlayers' is not in struct", "", last)

    assert error.message == refused
    assert comes_again(error, has_state=False)


@pytest.mark.parametrize("prefix", ["trainer-0 | ", "node17: ", "[2026-11-29 08:06:25,914] [ERROR] [rank 2] ", "3: "])  # fmt: skip
def test_what_a_tool_puts_before_each_line_is_dropped(prefix: str) -> None:
    noise = ["Exception in thread T-1:", *traceback_of("OSError: [Errno 5] Input/output error")]
    lines = [*traceback_of("KeyError: 'labels'"), *noise]

    error = error_in(
        *(prefix.replace("25", f"{number:02}") + line for number, line in enumerate(lines))
    )

    assert (error.type_name, error.message) == ("KeyError", "'labels'")
    assert error.beside == ("OSError: [Errno 5] Input/output error",)


class CountingLines(list[str]):
    """Lines that count how many of them are read."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        self.read += len(range(*place.indices(len(self)))) if isinstance(place, slice) else 1
        return super().__getitem__(place)


@pytest.mark.parametrize(
    "block",
    [
        ['  File "a.py", line 1, in b'],
        ["Traceback (most recent call last):"],
        ["Traceback (most recent call last):", '  File "a.py", line 1, in b', "E: y"],
        ["terminate called after throwing an instance of 'a'"],
        ["Fatal Python error: Aborted"],
    ],
)
def test_each_line_of_an_output_is_read_a_bounded_number_of_times(block: list[str]) -> None:
    lines = CountingLines(block * (20_000 // len(block)))

    _find_errors(lines, [False] * len(lines))

    assert lines.read < 200 * len(lines)
