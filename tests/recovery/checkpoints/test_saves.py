"""Which files are one save, and what a save lacks."""

from dataclasses import replace

import pytest

from recovery.checkpoints.names import Piece, piece_of, step_of, with_rank
from recovery.checkpoints.saves import FlatSave, gather
from recovery.messages.candidates import Candidate, CheckpointFormat, Holds, Shape


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


def told(name: str, step: int | None) -> Candidate:
    return replace(saved(name), step=step, is_step_exact=step is not None)


def test_a_last_number_without_a_word_is_a_rank_where_the_contents_tell_one_step() -> None:
    names = [told(f"step{step}.{rank}.pt", step) for step in (10, 20) for rank in range(3)]

    whole, torn = gather(names[:-1])
    (first,) = gather(names[:3], world_size=3)

    assert (whole.main.tag, len(whole.others), whole.defect) == ("step10.0.pt", 2, None)
    assert (torn.main.tag, len(torn.others)) == ("step20.0.pt", 1)
    assert torn.defect is not None
    assert (first.main.tag, len(first.others), first.has_ranks) == ("step10.0.pt", 2, True)


@pytest.mark.parametrize(
    "steps",
    [
        (10, 10, 20, None),  # one does not tell it
        (10, 15, 20, 25),  # batches of an epoch
        (10, 10, 10, 10),  # copies of one state
        (None, None, None, None),
    ],
)
def test_a_last_number_without_a_word_is_no_rank_elsewhere(steps: tuple[int | None, ...]) -> None:
    names = ("ckpt_1_0.pt", "ckpt_1_1.pt", "ckpt_2_0.pt", "ckpt_2_1.pt")

    assert gather(list(map(told, names, steps)), world_size=2) == []


def test_of_a_first_save_there_are_as_many_as_the_job_has_ranks() -> None:
    names = [told(f"step10_{rank}.pt", 10) for rank in range(3)]

    assert gather(names, world_size=2) == []


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


def test_an_average_with_an_optimizer_is_whole_without_a_model_beside_it() -> None:
    names = ["ema_step_10.pt", "ema_step_20.pt"]
    assert [save.defect for save in gather([saved(name) for name in names])] == [None, None]

    weights = [saved(name, holds=Holds.MODEL) for name in names]
    assert gather(weights)[1].defect == "no model lies beside ema_step_20.pt"


@pytest.mark.parametrize(
    ("first", "second"), [("G_XtoY.pkl", "G_YtoX.pkl"), ("policy_9.pt", "value_9.pt")]
)
def test_models_that_are_trained_together_are_one_save(first: str, second: str) -> None:
    saves = by_main([second, first])

    assert [other.tag for other in saves[first].others] == [second]


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
        ("c_9-part-0-shard1.pt", Piece("c_9-#-#.pt", 0, None, more="shard1")),
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
