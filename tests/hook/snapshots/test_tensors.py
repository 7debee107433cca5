"""Tensors of real PyTorch: every type and layout, training that goes on bit by bit, DTensors."""

import copy
import importlib.util
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankmend.hook import gloo_threads
from rankmend.hook.snapshots import structure, tensors
from rankmend.hook.snapshots.accelerator import Accelerator
from tests.hook.snapshots.rank import SnapshotRank
from tests.support.hook import ROOT, RUN_S_MAX
from tests.support.torch_ranks import TorchRank

pytestmark = [
    pytest.mark.process,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed"),
]


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def rank(tmp_path: Path) -> SnapshotRank:
    return SnapshotRank(tmp_path)


def keep(rank: SnapshotRank, state: Any, mesh: object = None) -> Any:
    assert rank.keeper().take(5, state)
    return rank.restore(3, 5, mesh)


MAKERS = {
    "row-major": lambda torch: torch.randn(3, 4),
    "transposed": lambda torch: torch.randn(3, 4).t(),
    "channels last": lambda torch: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every second": lambda torch: torch.randn(8, 8)[:, ::2],
    "expanded": lambda torch: torch.randn(1, 3).expand(4, 3),
    "zero-dimensional": lambda torch: torch.tensor(7),
    "empty": lambda torch: torch.empty(0, 3, dtype=torch.bfloat16),
    "bool": lambda torch: torch.tensor([True, False]),
    "conjugated": lambda torch: torch.randn(3, dtype=torch.complex64).conj(),
    "with gradient": lambda torch: torch.randn(3, requires_grad=True) * 2,
    "random state": lambda torch: torch.get_rng_state(),
    **{
        name: lambda torch, name=name: torch.arange(12).to(getattr(torch, name)).reshape(3, 4)
        for name in ("bfloat16", "float16", "float64", "int8", "uint16", "uint64", "complex128")
    },
    "float8": lambda torch: torch.randn(4).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_tensor_comes_back_with_its_type_shape_and_bytes(
    torch: Any, rank: SnapshotRank, name: str
) -> None:
    tensor = MAKERS[name](torch)

    (restored,) = keep(rank, (tensor,))

    plain = tensor.detach().resolve_conj()
    assert (restored.dtype, restored.shape) == (plain.dtype, plain.shape)
    assert type(restored) is torch.Tensor
    a, b = (one.contiguous().flatten().view(torch.uint8) for one in (restored, plain))
    assert torch.equal(a, b)
    if tensors.is_dense(tensor.shape, tensor.stride()):
        assert restored.stride() == tensor.stride()


def test_tied_weights_come_back_tied_and_views_apart(torch: Any, rank: SnapshotRank) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))

    restored = keep(rank, {"a": weight, "b": weight.detach(), "row": weight.detach()[0]})

    restored["a"][0, 0] = 5.0
    assert restored["b"][0, 0] == 5.0
    assert restored["row"][0] == weight[0, 0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda torch: torch.randn(3).to_sparse(), "sparse_coo"),
        (lambda torch: torch.empty(3, device="meta"), "meta"),
        (lambda torch: torch.nn.UninitializedParameter(), "UninitializedParameter"),
        (lambda torch: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8), "qint8"),
    ],
)
def test_a_tensor_of_another_kind_is_refused_by_its_place(
    torch: Any, rank: SnapshotRank, make: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not rank.keeper().take(5, {"x": [1, make(torch)]})

    message = capsys.readouterr().err
    assert "state['x'][1]" in message
    assert said in message


def test_values_of_torch_that_are_no_tensors_come_back(torch: Any, rank: SnapshotRank) -> None:
    state = [torch.float8_e5m2, torch.Size([2, 3]), torch.device("cuda", 1), torch.device("cpu")]

    restored = keep(rank, state)

    assert restored == state
    assert type(restored[1]) is torch.Size


@pytest.mark.parametrize(
    "fields",
    [
        ["float32", [2], None],
        ["float32", [3], None, None],
        ["object", [2], None, None],
        ["float32", [2], [5], None],
        ["float32", [2], [0], None],
        ["float32", [2.0], None, None],
        ["float32", [-1, -2], None, None],
    ],
    ids=str,
)
def test_a_tensor_row_that_does_not_fit_its_size_is_refused(torch: Any, fields: Any) -> None:
    with pytest.raises(ValueError):
        tensors.TorchTensors(torch).give_back(bytearray(64), 0, 8, fields, None)


@pytest.mark.parametrize("taken_after", [1, 6, 10])
def test_training_goes_on_bit_by_bit(torch: Any, rank: SnapshotRank, taken_after: int) -> None:
    def build() -> Any:
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.BatchNorm1d(16)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 7])

    def train(parts: Any, steps: int) -> None:
        model, optimizer, scheduler = parts
        for _ in range(steps):
            scale = random.random() + np.random.random()
            optimizer.zero_grad()
            (model(torch.randn(4, 8)) * scale).square().mean().backward()
            optimizer.step()
            scheduler.step()

    parts = build()
    keeper = rank.keeper()
    train(parts, taken_after)
    assert keeper.take(
        taken_after,
        {
            "parts": [part.state_dict() for part in parts],
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(),
            "python": random.getstate(),
        },
    )
    train(parts, 5)
    expected = copy.deepcopy(parts[0].state_dict())

    state = rank.restore(3, taken_after)
    parts = build()
    for part, kept in zip(parts, state["parts"], strict=True):
        part.load_state_dict(kept)
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    train(parts, 5)

    for name, tensor in parts[0].state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_a_tensor_that_changes_its_shape_type_or_place_changes_the_plan(
    torch: Any, rank: SnapshotRank
) -> None:
    keeper = rank.keeper()
    states = [
        [torch.ones(3), torch.ones(2)],
        [torch.ones(2), torch.ones(3)],
        [torch.ones(2, dtype=torch.int32), torch.ones(3)],
        [np.ones(2), torch.ones(3)],
        [torch.ones(3), np.ones(2)],
        [torch.ones(3)],
        {"a": torch.ones(3, 2).t()},
    ]

    for step, state in enumerate(states):
        assert keeper.take(step, state)
        assert str(rank.restore(3, step)) == str(state)


# DTensors ----------------------------------------------------------------------------------


@pytest.fixture
def mesh(torch: Any, tmp_path: Path) -> Iterator[Any]:
    dist = pytest.importorskip("torch.distributed")
    device_mesh = pytest.importorskip("torch.distributed.device_mesh")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("replica", "shard"))
    gloo_threads.let_go()
    dist.destroy_process_group()


def test_a_dtensor_comes_back_on_its_part_of_the_mesh(
    torch: Any, rank: SnapshotRank, mesh: Any
) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    local = torch.arange(6.0).reshape(2, 3)
    state = {
        "both": DTensor.from_local(local, mesh, [Replicate(), Shard(1)]),
        "one": DTensor.from_local(local, mesh["shard"], [Shard(0)]),
        "sum": DTensor.from_local(local, mesh["shard"], [Partial()]),
    }

    restored = keep(rank, state, mesh)
    plain = rank.restore(3, 5)

    for name, tensor in state.items():
        assert restored[name].placements == tensor.placements
        assert restored[name].device_mesh == tensor.device_mesh
        assert (restored[name].shape, restored[name].stride()) == (tensor.shape, tensor.stride())
        assert torch.equal(restored[name].to_local(), local)
        assert type(plain[name]) is torch.Tensor


def test_a_dtensor_of_another_mesh_is_an_error_that_names_both(
    torch: Any, rank: SnapshotRank, mesh: Any
) -> None:
    from torch.distributed.tensor import DTensor, Shard

    assert rank.keeper().take(5, [DTensor.from_local(torch.ones(2), mesh["shard"], [Shard(0)])])

    with pytest.raises(ValueError, match=r"'names': \['shard'\].*'names': \['replica'\]"):
        rank.restore(3, 5, mesh["replica"])


def test_a_fully_sharded_model_trains_on_from_its_snapshot(
    torch: Any, rank: SnapshotRank, mesh: Any
) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")

    def build() -> Any:
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 4)
        fsdp.fully_shard(model, mesh=mesh["shard"])
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model: Any, optimizer: Any) -> None:
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(step))).square().sum().backward()
            optimizer.step()

    model, optimizer = build()
    train(model, optimizer)
    kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    assert rank.keeper().take(5, kept)
    train(model, optimizer)
    expected = {name: tensor.to_local().clone() for name, tensor in model.state_dict().items()}

    state = rank.restore(3, 5, mesh)
    model, optimizer = build()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    train(model, optimizer)

    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.to_local(), expected[name])


SHARDED = """
import sys, torch, torch.distributed as dist
from pathlib import Path
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from rankmend.hook import gloo_threads
from rankmend.hook.snapshots import restoring
from rankmend.hook.snapshots.keeper import Identity, SnapshotKeeper
folder, number = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
identity = Identity(bytes(16), 1, number, number, 2)

def build():
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 3)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)

def train(model, optimizer):
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 5), float(step + number))).square().sum().backward()
        optimizer.step()

parts = build()
train(*parts)
keeper = SnapshotKeeper(str(folder), identity, lambda *numbers: None)
assert keeper.take(3, [part.state_dict() for part in parts])
train(*parts)
expected = [parameter.to_local().clone() for parameter in parts[0].parameters()]
parts = build()
for part, kept in zip(parts, restoring.restore(str(folder), identity, (1, 3), mesh)):
    part.load_state_dict(kept)
train(*parts)
for parameter, tensor in zip(parts[0].parameters(), expected):
    assert torch.equal(parameter.to_local(), tensor)
gloo_threads.let_go()
dist.destroy_process_group()
print("equal", flush=True)
"""


def test_two_ranks_of_a_sharded_model_train_on_bit_by_bit(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ranks = [TorchRank(SHARDED, [str(tmp_path), str(n)], environment) for n in range(2)]

    ends = [rank.communicate(timeout=RUN_S_MAX) for rank in ranks]

    assert [out for out, _errors in ends] == ["equal\n"] * 2, ends
    assert sorted(path.name for path in tmp_path.glob("rank*")) == [
        "rank-0.0.snapshot",
        "rank-1.0.snapshot",
    ]


def test_tensors_of_two_devices_are_refused() -> None:
    leaves = structure.Leaves()
    for device in ("cuda:0", "cuda:1"):
        leaves.add(None, ("cuda", None, (), (), device, None, 0))
    accelerator = Accelerator.__new__(Accelerator)

    assert accelerator.find_device(leaves, [1]) == "cuda:1"
    with pytest.raises(ValueError, match="cuda:0, cuda:1"):
        accelerator.find_device(leaves, [0, 1])


def test_snapshot_during_a_capture_is_skipped_and_says_why_once(
    torch: Any,
    rank: SnapshotRank,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Capturing(Accelerator):
        def is_recording(self) -> bool:
            return True

    monkeypatch.setattr(tensors, "CPU", "cuda")  # tensors take the way of those on a device
    keeper = rank.keeper()
    keeper._find_adapters()
    keeper._adapters["cuda"] = Capturing(torch)

    taken = [keeper.take(step, {"weights": torch.ones(3)}) for step in (5, 6)]

    assert taken == [False, False]
    assert capfd.readouterr().err.count("while a CUDA graph is captured") == 1


@pytest.mark.parametrize(
    ("shape", "stride", "dense"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((2, 3), (4, 1), False),
        ((4, 3), (0, 1), False),
        ((1, 3), (7, 1), True),
        ((0, 3), (9, 9), True),
        ((), (), True),
        ((2,), (), False),
        ((2, 2), (1, 1), False),
    ],
)
def test_a_dense_tensor_fills_its_memory(
    shape: tuple[int, ...], stride: tuple[int, ...], dense: bool
) -> None:
    assert tensors.is_dense(shape, stride) is dense
