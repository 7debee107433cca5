"""Flight-recorder dumps: what is read, and what hostile and broken ones can't do."""

import contextlib
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.formats import plain_pickle
from detectors.formats.plain_pickle import load_plain
from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.flight_dump import OperationState
from detectors.hang.from_dumps import diagnose_hang
from detectors.hang.standings import trim_dump, view_job
from rankmend.errors import SourceError

DATASETS = os.environ.get("RANKMEND_DATASETS")


def entry(sequence: int, **changes: Any) -> dict[str, Any]:
    return {
        "record_id": sequence,
        "pg_id": 1,
        "process_group": ("7", "DATA_PARALLEL_GROUP"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000 + sequence,
        "input_sizes": [[4, 2]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 2]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
        **changes,
    }


def dump(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {"7": {"name": "7", "desc": "DATA_PARALLEL_GROUP", "ranks": "[0, 1]"}},
        "pg_status": {
            "1": {
                "last_enqueued_collective": 5,
                "last_started_collective": -1,
                "last_completed_collective": 4,
            }
        },
        "entries": list(entries),
        **changes,
    }


def pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner, inner, inner) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=30,
)


@given(PLAIN, st.integers(3, 5))
def test_every_plain_value_is_read_as_python_wrote_it(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol=protocol)) == value


@given(st.binary(max_size=300))
def test_any_bytes_are_a_value_or_a_named_error(data: bytes) -> None:
    with contextlib.suppress(SourceError):
        load_plain(b"\x80\x02" + data)


@given(st.data())
def test_a_dump_with_changed_bytes_is_read_or_a_named_error(data: st.DataObject) -> None:
    good = bytearray(pickled(dump(entry(4, retired=True), entry(5))))
    for _change in range(data.draw(st.integers(1, 6))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(SourceError):
        parse_dump(bytes(good))


@given(st.integers(0, 2000))
def test_a_truncated_dump_is_a_named_error(length: int) -> None:
    complete = pickled(dump(entry(4), entry(5)))

    with pytest.raises(SourceError):
        parse_dump(complete[: min(length, len(complete) - 1)])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/rankmend-was-here",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_names_a_function_is_refused_and_not_run(
    protocol: int, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=r"opcode|begins with"):
        parse_dump(pickle.dumps({"version": Evil()}, protocol=protocol))

    assert not Path("/tmp/rankmend-was-here").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02" + b"(" * 10_000 + b".",
        b"\x80\x02]" + b"r\xff\xff\xff\xff" + b".",
        b"\x80\x02X\xff\xff\xff\xffabc.",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b".",
        b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\xff" * 64 + b".",
        b"\x80\x02" + b"j\x00\x00\x00\x80" + b".",
        b"\x80\x02]q\x00h\x00a.",
        b"\x80\x02.",
        b"\x80\x09N.",
    ],
    ids=["marks", "memo", "text", "text8", "number", "unknown memo", "cycle", "empty", "protocol"],
)
def test_a_pickle_that_asks_for_memory_it_does_not_bring_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError):
        parse_dump(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\x80\x02" + b"(" * 10_000 + b".", "nests deeper than 64"),
        (b"\x80\x02(.", "open marks"),
        (b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".", "number of 255 bytes"),
    ],
)
def test_a_bound_of_the_interpreter_says_which_it_is(data: bytes, match: str) -> None:
    with pytest.raises(SourceError, match=match):
        load_plain(data)


def test_more_opcodes_than_allowed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "OPCODES_MAX", 1000)

    with pytest.raises(SourceError, match="more than 1000 opcodes"):
        load_plain(b"\x80\x02" + b"N0" * 1000 + b"N.")


def test_an_outstanding_collective_and_its_group_are_read() -> None:
    read = parse_dump(pickled(dump(entry(4, retired=True), entry(5))))

    assert read.groups[0].ranks == (0, 1)
    assert [(op.sequence, op.state) for op in read.operations] == [
        (4, OperationState.DONE),
        (5, OperationState.ENQUEUED),
    ]
    assert (read.statuses[0].group, read.statuses[0].completed) == ("7", 4)
    assert read.timeout_s == 600


def test_json_with_numbers_as_text_says_the_same_as_the_pickle() -> None:
    status = {"last_enqueued_collective": "5", "last_completed_collective": "4"}
    text = json.dumps(dump(entry(5, time_discovered_started_ns=0), pg_status={"1": status}))

    assert parse_dump(text.encode()) == parse_dump(pickled(dump(entry(5))))


def test_a_peer_is_the_rank_in_the_job_and_not_the_number_in_the_group() -> None:
    config = {"7": {"name": "7", "desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": "[2, 6]"}}
    one = entry(5, profiling_name="nccl:recv 0<-1", is_p2p=True, p2p_seq_id=3)

    read = parse_dump(pickled(dump(one, pg_config=config)))

    assert (read.operations[0].kind, read.operations[0].peer) == ("recv", 6)


def test_a_transfer_of_an_older_dump_is_known_by_its_name_and_is_no_collective() -> None:
    config = {"7": {"name": "7", "desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": "[2, 6]"}}
    one = entry(5, profiling_name="nccl:send 0->1", seq_id=3)
    del one["is_p2p"], one["p2p_seq_id"]

    (read,) = parse_dump(pickled(dump(one, pg_config=config))).operations

    assert (read.kind, read.peer, read.sequence) == ("send", 6, 3)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": "3.0"}, "version '3.0'"),
        ({"version": None}, "version"),
        ({"entries": {"a": 1}}, "entries"),
        ({"entries": [7]}, "entry 0"),
        ({"pg_config": {"7": {"ranks": "[0, -1]"}}}, "ranks of group"),
        ({"pg_config": {"7": {"ranks": "[0, 0]"}}}, "repeat"),
        ({"pg_status": {"1": 4}}, "pg_status"),
        ({"entries": [entry(1, state="sleeping")]}, "sleeping"),
        ({"entries": [entry(1, collective_seq_id="x")]}, "collective_seq_id"),
        ({"entries": [entry(1, process_group="7")]}, "process_group"),
        ({"entries": [entry(1, input_sizes=[7])]}, "size"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], match: str) -> None:
    with pytest.raises(SourceError, match=match):
        parse_dump(pickled(dump(**change)))


def test_a_memo_that_repeats_a_long_list_is_bounded() -> None:
    sizes = [[1] * 60] * 100_000
    data = pickled(dump(entry(5, input_sizes=sizes)))

    assert len(parse_dump(data).operations[0].shape.input_sizes) == 4096


def test_gloo_groups_have_the_members_that_used_them() -> None:
    gloo = {"": {"name": "", "desc": "", "ranks": "[]"}}
    group = {"process_group": ("1", "x"), "profiling_name": "gloo:all_reduce"}
    done = entry(4, retired=True, **group)
    waits = parse_dump(pickled(dump(done, entry(5, **group), pg_config=gloo)))
    idle = {"1": {"last_enqueued_collective": 4, "last_completed_collective": 4}}
    absent = parse_dump(pickled(dump(done, pg_config=gloo, pg_status=idle)))

    diagnosis = diagnose_hang(view_job({0: waits, 1: absent, 2: waits}))

    assert [culprit.rank for culprit in diagnosis.culprits] == [1]
    assert diagnosis.confidence < 0.9


def test_trimming_changes_no_view() -> None:
    entries = [entry(number, retired=True) for number in range(1, 5)]
    read = parse_dump(pickled(dump(*entries, entry(5))))

    assert len(trim_dump(read).operations) == 2
    assert view_job({0: trim_dump(read)}) == view_job({0: read})
