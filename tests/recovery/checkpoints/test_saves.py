"""Which files are one save, and what a save lacks."""

import pytest

from recovery.checkpoints.model import Candidate, CheckpointFormat, Holds, Shape
from recovery.checkpoints.names import Piece, piece_of, step_of, with_rank
from recovery.checkpoints.saves import FlatSave, gather


def saved(name: str, *, elements: int = 100, holds: Holds = Holds.STATE) -> Candidate:
    shape = Shape(holds, 4, elements)
    return Candidate(f"/c/{name}", step_of(name), CheckpointFormat.TORCH, 1, 1000.0, shape=shape)


def by_main(names: list[str], world_size: int = 0) -> dict[str, FlatSave]:
    saves = gather([saved(name) for name in names], world_size)
    return {save.main.tag: save for save in saves}


RANKS = [f"step_{step}_rank_{rank}.pt" for step in (10, 20) for rank in range(4)]


def test_the_files_of_all_ranks_are_one_save() -> None:
    saves = by_main(RANKS)

    assert [len(save.others) for save in saves.values()] == [3, 3]
    assert all(save.has_ranks and save.defect is None for save in saves.values())


@pytest.mark.parametrize("missing", range(1, 4))
def test_a_save_that_lacks_the_file_of_a_rank_is_torn(missing: int) -> None:
    save = by_main([name for name in RANKS if name != f"step_20_rank_{missing}.pt"])[
        "step_20_rank_0.pt"
    ]

    assert save.defect is not None
    assert f"rank {missing}" in save.defect


@pytest.mark.parametrize("world_size", [0, 2])
def test_optimizers_of_single_ranks_belong_to_the_one_model_beside_them(world_size: int) -> None:
    parts = ("model_step{}.pt", "optim_step{}_rank0.pt", "optim_step{}_rank1.pt")
    names = [part.format(step) for step in (100, 200) for part in parts]

    saves = by_main([*names, "model_step300.pt", "optim_step300_rank0.pt"], world_size)

    defects = [saves[f"model_step{step}.pt"].defect for step in (100, 200, 300)]
    assert defects[:2] == [None, None]
    assert defects[2] is not None
    assert "rank 1" in defects[2]


def test_a_first_save_of_one_model_with_an_optimizer_of_each_rank_is_whole() -> None:
    names = ["model_step100.pt", "optim_step100_rank0.pt", "optim_step100_rank1.pt"]

    assert by_main(names, world_size=2)["model_step100.pt"].defect is None


def test_as_many_files_as_ranks_are_whole_though_the_save_before_had_more() -> None:
    shrunk = [name for name in RANKS if name not in ("step_20_rank_2.pt", "step_20_rank_3.pt")]

    assert by_main(shrunk)["step_20_rank_0.pt"].defect is not None
    assert by_main(shrunk, world_size=2)["step_20_rank_0.pt"].defect is None


def test_ranks_with_gaps_are_whole_where_each_save_has_the_same() -> None:
    """As where one rank of each node saves."""
    names = [f"step_{step}_rank{rank}.pt" for step in (10, 20) for rank in (0, 8)]

    assert {save.defect for save in by_main(names).values()} == {None}


def test_a_number_of_parts_in_the_name_says_what_the_first_save_lacks() -> None:
    save = by_main(["ckpt-10-1of3.pt", "ckpt-10-3of3.pt"])["ckpt-10-1of3.pt"]

    assert save.defect == "the file of part 2 of 3 is missing"


def test_rounds_are_no_ranks() -> None:
    assert by_main(["model_r1.pt", "model_r2.pt", "model_r3.pt"]) == {}


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("step_3_rank_2.pt", Piece("step_3_#.pt", 2, None, is_rank=True)),
        ("iter_5_mp_rank_03.pt", Piece("iter_5_#.pt", 3, None, is_rank=True)),
        ("ckpt-3of8.pt", Piece("ckpt-#.pt", 3, 8)),
        ("model-00001-of-00002.pt", Piece("model-#.pt", 1, 2)),
        ("optim_world_size_8_rank_3.pt", Piece("optim__#.pt", 3, 8, is_rank=True)),
        ("deer3.pt", Piece("deer3.pt")),
        ("rank.pt", Piece("rank.pt")),
    ],
)
def test_a_rank_or_a_part_is_read_from_the_name(name: str, piece: Piece) -> None:
    assert piece_of(name) == piece


def test_the_name_of_another_ranks_file_keeps_its_width() -> None:
    assert with_rank("iter_5_rank_03.pt", 12) == "iter_5_rank_12.pt"
    assert with_rank("model_5.rank_0.pth", 3) == "model_5.rank_3.pth"
    assert with_rank("last.pt", 3) is None


@pytest.mark.parametrize("name", ["iter_5_mp_rank_03.pt", "step5_tp0_pp1.pt", "ckpt_node1.pt"])
def test_a_place_in_a_group_is_no_rank_of_the_job(name: str) -> None:
    assert with_rank(name, 1) is None
