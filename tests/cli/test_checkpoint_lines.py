"""What `rankmend status` says of checkpoints."""

from typing import Any

import msgspec

from rankmend.cli.screens.checkpoint_lines import say_checkpoint, say_saving, say_snapshots
from recovery.api.wire import CostView
from tests.support.checkpoint_views import SNAPSHOTS, VIEW


def memory(world_size: int = 4, **changed: Any) -> list[str]:
    return say_snapshots(msgspec.structs.replace(SNAPSHOTS, **changed), world_size)


def lines(**changed: Any) -> list[str]:
    return say_checkpoint(msgspec.structs.replace(VIEW, **changed))


def cost(**changed: Any) -> str:
    (line,) = say_saving(msgspec.structs.replace(VIEW, **changed), None)
    return line


def memory_cost(**changed: Any) -> str:
    (line,) = say_saving(None, msgspec.structs.replace(SNAPSHOTS, **changed))
    return line


def test_status_tells_the_newest_checkpoint_and_how_long_saves_take() -> None:
    assert lines() == [
        "newest checked checkpoint: /c/step-400, step 400 (12 steps ago), 3 min old, 2.1 GB",
        "a save takes 30 s (70 MB/s); a save stops training for 14.4 s; "
        "the last restore took 1.5 s (1.4 GB/s)",
    ]


def test_costs_of_saving_are_told_with_the_best_interval() -> None:
    assert cost(best=CostView(340.0, 0.04, 0.0144, 0.0078, 0.0544)) == (
        "checkpoints every 12 min cost 5.9 % of goodput (2.0 % stalls, 3.1 % recomputed steps, "
        "0.8 % restarts, at one failure per 3.2 h, by 5 in 16 h); every 5.67 min would cost 5.4 % "
        "(Young/Daly)"
    )


def test_interval_that_costs_as_much_as_the_best_one_is_left_alone() -> None:
    assert cost().endswith("; the best interval, 9.67 min, would cost no less (Young/Daly)")


def test_costs_say_whose_failures_it_counts() -> None:
    assert "one failure per 3.2 h, by 2 in 16 h and the published rate)" in cost(failures=2.0)
    none = cost(failures=0.0, ran_s=600.0)
    assert "one failure per 3.2 h, as published: this job had none in 10 min)" in none


def test_stall_that_steps_tell_is_a_bound() -> None:
    assert "a save stops training for at most 14.4 s" in lines(stall_source="steps")[1]


def test_what_is_missing_for_the_costs_is_said() -> None:
    missing = cost(present=None, best=None, missing="no save has been measured yet")

    assert missing == "what saving costs is not known: no save has been measured yet"


def test_unknown_figures_are_left_out() -> None:
    bare = lines(step=None, size_bytes=None, save_s=None, stall_s=None, restore_s=None)

    assert bare == ["newest checked checkpoint: /c/step-400, 3 min old"]


def test_status_tells_what_is_in_memory_what_it_holds_and_what_it_costs() -> None:
    assert memory() == [
        "in memory: step 400 (3 steps ago), 1.25 s old, 4 GB",
        "a snapshot stops training for 0.05 s; all hold 8 GB, at most 4 GB a node",
    ]
    assert memory_cost() == (
        "snapshots every 5 s cost 1.8 % of goodput (1.0 % stalls, under 0.1 % recomputed steps, "
        "0.8 % restarts, at one failure per 4.27 h that leaves the nodes (75 % of all)); "
        "every 40 s would cost 1.0 % (Young/Daly)"
    )


def test_status_says_why_memory_would_not_help() -> None:
    nothing = memory(
        step=None, steps_since=None, age_s=None, size_bytes=None, without_count=20,
        without=[0, 1, 2], damaged=1, refused=7, files=0, stall_s=None, interval_s=None,
    )  # fmt: skip

    assert nothing == [
        "in memory: no step that every rank has",
        "all hold 8 GB, at most 4 GB a node; 20 ranks have none (0, 1, 2, ...); "
        "1 have changed in memory and are not restored; 7 were requested and not stored (no room)",
    ]
    missing = "the running ranks have kept no snapshot yet"
    assert memory_cost(present=None, best=None, missing=missing) == (
        "what snapshots cost is not known: the running ranks have kept no snapshot yet"
    )


def test_status_of_one_machine_says_whose_memory_it_saw() -> None:
    assert memory(world_size=16)[0].endswith("4 GB (ranks of this machine: 4 of 16)")


def test_best_interval_is_told_before_the_present_one_is_known() -> None:
    first = memory_cost(interval_s=None, present=None, missing="no rank has two")

    assert first == (
        "snapshots every 40 s would cost 1.0 % of goodput, at one failure per 4.27 h that leaves "
        "the nodes (75 % of all) (Young/Daly)"
    )
