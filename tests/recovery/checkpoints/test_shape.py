"""The shape of a content: what it holds, read without unpickling."""

from pathlib import Path
from typing import Any

import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.files.shape import counters_in, shape_of_arrays, shape_of_content
from recovery.messages.candidates import Holds
from tests.support.checkpoint_contents import Tensor, adam, weights

pytestmark = pytest.mark.process

MODEL = weights()


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        ({"model": MODEL, "optimizer": adam(MODEL), "step": 3}, Holds.STATE),
        ({"state_dict": MODEL, "opt_state": [MODEL]}, Holds.STATE),
        ({"net": MODEL, "trainer": {"inner": adam(MODEL)}}, Holds.STATE),
        ({"g": MODEL, "g_optim": adam(MODEL)}, Holds.STATE),
        (MODEL, Holds.MODEL),
        ({"model": MODEL, "optimizer": None, "optimizer_name": "adam"}, Holds.MODEL),
        ({"model": MODEL, "optimizer_states": []}, Holds.MODEL),
        ({"model": MODEL, "optimizer_config": {"lr": 0.1}}, Holds.MODEL),
        (adam(MODEL), Holds.OPTIMIZER),
        ({"optimizer": adam(MODEL), "rng_state": Tensor((5056,))}, Holds.OPTIMIZER),
        ({"loss": [0.1, 0.2], "epoch": 3}, Holds.VALUES),
        (Tensor((100, 10)), Holds.VALUES),
        ([Tensor((100, 10))], Holds.VALUES),
        ({"features": Tensor((500, 16)), "labels": Tensor((500,))}, Holds.VALUES),
        ({"x": Tensor((9, 4)), "edge_index": Tensor((2, 40)), "y": Tensor((3,))}, Holds.VALUES),
        ({"mu": Tensor((64,)), "sigma": Tensor((64, 64))}, Holds.VALUES),
        ({"params": MODEL, "state": {"mu": MODEL, "nu": MODEL}}, Holds.STATE),
        ({"W1": Tensor((16, 8)), "b1": Tensor((8,))}, Holds.MODEL),
        ({"model": Tensor((3,))}, Holds.MODEL),
        ({"layer": {"weight": Tensor((3,))}}, Holds.MODEL),
    ],
)
def test_content_tells_what_it_holds(content: Any, holds: Holds) -> None:
    assert shape_of_content(content_of(content)).holds is holds


def content_of(content: Any) -> Any:
    from recovery.checkpoints.files.pickle_stream import read_plain
    from tests.support.checkpoint_contents import pickled

    return read_plain(pickled(content), Deadline(SystemClock(), 300))


@pytest.mark.parametrize(
    ("content", "counters"),
    [
        ({"iter_num": 250, "model": {}}, (250, None)),
        ({"meta": {"epoch": 9, "iter": 900}}, (900, 9)),
        ({"optimizer_history": [{"num_updates": 500}, {"num_updates": 2000}]}, (2000, None)),
        ({"state": {"timestamp": {"epoch": 1, "batch": 900}}}, (900, 1)),
        ({"state": {"timestamp": {"Timestamp": {"batch": {"value": 900}}}}}, (900, None)),
        ({"trainer_state": {"global_step": 7}}, (7, None)),
        ({"epoch": 3, "step": 5}, (None, 3)),
        ({"epoch": 3, "trainer": {"step": 5}}, (None, 3)),
        ([1], (None, None)),
    ],
)
def test_a_step_is_read_where_frameworks_put_it(
    content: Any, counters: tuple[int | None, int | None]
) -> None:
    assert counters_in(content) == counters


@pytest.mark.parametrize(
    ("names", "holds"),
    [
        (("w", "b", "step"), Holds.MODEL),
        (("w", "opt/w", "step"), Holds.STATE),
        (("w", "m_w", "v_w"), Holds.STATE),
        (("params/w", "state/mu/w", "state/nu/w"), Holds.STATE),
        (("mu", "sigma"), Holds.VALUES),  # of a distribution
        (("loss",), Holds.VALUES),
        (("opt_w", "opt_b"), Holds.OPTIMIZER),
    ],
)
def test_names_of_arrays_tell_what_an_npz_file_holds(names: tuple[str, ...], holds: Holds) -> None:
    shape = shape_of_arrays(dict.fromkeys(names, 100), has_step="step" in names)

    assert shape.holds is holds


def test_a_content_of_too_many_values_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.checkpoints.files.shape.VALUES_MAX", 10)

    assert shape_of_content({"model": [[] for _ in range(20)]}).holds is Holds.UNKNOWN


def test_a_content_that_contains_itself_ends(tmp_path: Path) -> None:
    content: dict[str, Any] = {"model": {}}
    content["model"]["again"] = content

    assert shape_of_content(content).tensors == 0
