"""What a state is turned into, and back: every plain value, arrays, and hostile documents."""

import contextlib
import json
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankmend.hook.snapshots import layout, structure
from rankmend.hook.snapshots.arrays import NumpyArrays
from tests.hook.snapshots.rank import SnapshotRank, is_same

pytestmark = pytest.mark.process

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=20),
    st.text(st.characters(categories=["Cs"]), max_size=3),  # halves of surrogate pairs
)
KEYS = st.recursive(SCALARS, lambda keys: st.tuples(keys, keys), max_leaves=3).filter(
    lambda key: "nan" not in repr(key)  # a dict doesn't find such a key either
)
STATES = st.recursive(
    SCALARS | st.binary(max_size=100) | st.lists(st.integers(), min_size=60, max_size=70),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=5)
        | st.dictionaries(st.text("abc", max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)


class Color(IntEnum):
    RED = 1


@dataclass
class Point:
    x: int


def round_trip(state: Any) -> Any:
    leaves = structure.Leaves()
    tree = structure.encode(state, leaves, {})
    document = structure.write_document(tree, "[]", [])
    decoded, _tensors, _places = structure.read_document(document)
    return structure.decode(decoded, lambda _number: None, lambda number: leaves.blobs[number], {})


@given(STATES)
@settings(deadline=None)
def test_every_plain_state_comes_back_with_its_types(state: Any) -> None:
    assert is_same(round_trip(state), state)


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1.0, 1, True),
        *(2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**4000),
        *("", "é", "\ud83d\ude00", "😀", "x" * 5000, b"", b"\0" * 5000),
        *([1] * 64, (1,) * 64, [True] * 64, [1.0] * 64, [2**63] * 64, [1, 1.0] * 32),
        *({}, [], (), {(): ()}, {(1, (None, "a")): 1, 0.5: 2, None: 3, False: 4}),
        Counter({2: 3, "a": 1}),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_edge_values_come_back_as_they_were(value: Any) -> None:
    assert is_same(round_trip(value), value)


def test_ordered_and_default_dicts_come_back_as_dicts() -> None:
    state = [OrderedDict(b=1, a=2), defaultdict(list, {1: [2]})]

    assert is_same(round_trip(state), [{"b": 1, "a": 2}, {1: [2]}])


@pytest.mark.parametrize(
    ("state", "path", "what"),
    [
        ({"a": [1, len]}, "state['a'][1]", "builtin_function_or_method"),
        ({"optimizer": {"lr_lambda": lambda: 1}}, "state['optimizer']['lr_lambda']", "function"),
        ([Color.RED], "state[0]", "tests.hook.snapshots.test_structure.Color"),
        ((Point(1),), "state[0]", "tests.hook.snapshots.test_structure.Point"),
        ({Color.RED: 1}, "state, at the key <Color.RED: 1>", "a key of type"),
        ({"s": {1, 2}}, "state['s']", "set"),
    ],
)
def test_another_value_is_refused_with_its_place_and_type(state: Any, path: str, what: str) -> None:
    with pytest.raises(structure.UnsupportedError) as refused:
        round_trip(state)

    assert structure.find_path(state, refused.value.value) == path
    assert what in refused.value.what


def test_a_state_that_contains_itself_is_refused() -> None:
    state: list[Any] = [1]
    state += [state, state]

    with pytest.raises(structure.UnsupportedError, match="contains itself"):
        round_trip(state)


def test_a_state_nested_too_deep_is_refused() -> None:
    state: Any = 1
    for _ in range(structure.DEPTH_MAX + 1):
        state = [state]

    with pytest.raises(structure.UnsupportedError, match="below 100 others"):
        round_trip(state)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*"mdctifbSIUTnZyv"]), inner, min_size=1, max_size=1)
    ),
    max_leaves=15,
)
ROWS = st.lists(
    st.lists(
        st.sampled_from(
            ["numpy", "torch", 4096, 64, 0, -1, 2**62, "<f4", "|O", "V3", "C", [], [2]]
        ),
        max_size=7,
    ),
    max_size=3,
)


@given(JSON, ROWS, ROWS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_hostile_document_is_a_state_or_an_error(
    tmp_path: Path, tree: Any, rows: Any, places: Any
) -> None:
    rank = SnapshotRank(tmp_path)
    text = {"version": 1, "tensors": rows, "blobs": places, "state": tree}
    write_snapshot(rank, json.dumps(text).encode())

    with contextlib.suppress(ValueError):
        rank.restore(3, 7)


@pytest.mark.parametrize(
    "document",
    [b"", b"[", b"[" * 100_000, b"null", b"\xff", b'{"version":1}', b"9" * 5000],
    ids=lambda text: repr(text[:10]),
)
def test_a_torn_document_is_an_error(tmp_path: Path, document: bytes) -> None:
    rank = SnapshotRank(tmp_path)
    write_snapshot(rank, document)

    with pytest.raises(ValueError, match="the structure"):
        rank.restore(3, 7)


def write_snapshot(rank: SnapshotRank, document: bytes) -> None:
    """Write a whole snapshot of step 7 with this structure and a data region of one page."""
    at = layout.DATA_AT + 4096
    header = layout.Header(
        *rank.identity,
        step=7,
        sequence=1,
        data_at=layout.DATA_AT,
        data_size=4096,
        structure_at=at,
        structure_size=len(document),
        written_ns=1,
    )
    data = header.pack().ljust(layout.COMMIT_AT, b"\0") + layout.COMMIT.pack(1)
    rank.path(0).write_bytes(data.ljust(at, b"\0") + document)


ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.arange(20)[::3],
    np.arange(6.0).reshape(2, 3).T,
    np.array(5.0),
    np.empty((0, 3)),
    np.arange(4, dtype=">i4"),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array([1.5], dtype=np.float16),
    np.array(["a", "bcd"]),
    np.array([b"a", b"bcd"]),
    np.array(["2020-01-01"], dtype="M8[ns]"),
    np.zeros(3, dtype=np.longdouble),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{array.shape}")
def test_every_array_comes_back_with_its_type_shape_and_order(
    tmp_path: Path, array: "np.ndarray[Any, Any]"
) -> None:
    rank = SnapshotRank(tmp_path)

    assert rank.keeper().take(5, [array])

    (restored,) = rank.restore(3, 5)
    np.testing.assert_array_equal(restored, array)
    assert (restored.dtype.str, restored.shape) == (array.dtype.str, array.shape)
    assert restored.flags.fnc == array.flags.fnc
    assert restored.flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.array([object()]),
        np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]),
        np.zeros(2, dtype="V3"),
        np.ma.masked_array([1, 2]),
        np.matrix([[1]]),
    ],
    ids=lambda array: f"{type(array).__name__} {array.dtype}",
)
def test_an_array_of_another_kind_is_refused_by_its_place(
    tmp_path: Path, array: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    keeper = SnapshotRank(tmp_path).keeper()

    assert not keeper.take(5, {"data": array})
    assert not keeper.take(6, {"data": array})

    said = capsys.readouterr().err
    assert said.count("state['data']") == 1
    assert type(array).__name__ in said


@pytest.mark.parametrize(
    "value",
    [np.float32(1.5), np.float64("nan"), np.int8(-3), np.bool_(True), np.complex64(1j)],
    ids=lambda value: type(value).__name__,
)
def test_numpy_scalars_come_back_as_such(tmp_path: Path, value: Any) -> None:
    rank = SnapshotRank(tmp_path)

    assert rank.keeper().take(5, (value,))

    assert is_same(rank.restore(3, 5), (value,))


def test_an_array_row_that_does_not_fit_its_size_is_refused() -> None:
    for fields in (["<f4", [3], "C"], ["|O", [2], "C"], ["<f4", [-2], "C"], ["<f4", [2], "A"]):
        with pytest.raises(ValueError):
            NumpyArrays(np).give_back(bytearray(64), 0, 8, fields)
