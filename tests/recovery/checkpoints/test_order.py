"""Newest means newest: steps where they can be compared, times where they can't."""

from dataclasses import replace

import pytest

from recovery.checkpoints.order import (
    PlaceReason,
    evidence_of,
    mark_written,
    newest_first,
    passed_over,
    say_evidence,
)
from recovery.checkpoints.series import find_slots
from recovery.messages.candidates import (
    Candidate,
    CheckpointFormat,
    CheckpointVerdict,
    Hindrance,
)


def saved(name: str, step: int | None, unix_s: float, *, is_step_exact: bool = False) -> Candidate:
    return Candidate(f"/c/{name}", step, CheckpointFormat.TORCH, 1, unix_s, is_step_exact)


def names(candidates: list[Candidate]) -> list[str]:
    return [candidate.tag for candidate in newest_first(candidates, lambda one: one)]


def test_numbers_order_the_names_of_one_pattern_whatever_their_times_say() -> None:
    copied = [saved("step-9.pt", 9, 500), saved("step-10.pt", 10, 100), saved("step-8.pt", 8, 300)]

    assert names(copied) == ["step-10.pt", "step-9.pt", "step-8.pt"]


def test_a_number_says_nothing_about_a_name_of_another_pattern() -> None:
    last = saved("last.pt", None, 950)
    best = saved("best_step_10.pt", 10, 100)

    assert names([best, last]) == ["last.pt", "best_step_10.pt"]


def test_a_younger_series_comes_before_a_higher_number_of_another() -> None:
    series = [saved("old_step_900.pt", 900, 100), saved("step_20.pt", 20, 220)]

    assert names([*series, saved("step_10.pt", 10, 210)]) == [
        "step_20.pt",
        "step_10.pt",
        "old_step_900.pt",
    ]


def test_steps_out_of_the_content_order_all_names() -> None:
    last = saved("last.ckpt", 80, 100, is_step_exact=True)
    best = saved("epoch=0-step=20.ckpt", 20, 900, is_step_exact=True)

    assert names([best, last]) == ["last.ckpt", "epoch=0-step=20.ckpt"]


def test_a_run_that_counts_anew_comes_before_the_finished_one_beside_it() -> None:
    old = [saved(f"a_step_{at}.pt", at, at, is_step_exact=True) for at in (200, 300)]
    new = [saved(f"b_step_{at}.pt", at, 900 + at, is_step_exact=True) for at in (100, 200)]

    assert names([*old, *new])[:2] == ["b_step_200.pt", "b_step_100.pt"]


def test_the_first_file_of_the_next_fold_comes_before_the_fold_before() -> None:
    old = [saved(f"fold0_epoch{at}.pt", at, 100 + at) for at in (4, 5)]

    assert names([*old, saved("fold1_epoch1.pt", 1, 900)])[0] == "fold1_epoch1.pt"


def test_one_copy_of_an_old_file_under_another_name_is_no_new_run() -> None:
    old = [saved(f"step_{at}.pt", at, at, is_step_exact=True) for at in (200, 300)]

    assert (
        names([*old, saved("demo_step_100.pt", 100, 900, is_step_exact=True)])[0] == "step_300.pt"
    )


def test_two_series_that_are_written_in_turn_are_no_runs_one_after_the_other() -> None:
    often = [saved(f"step_{at}.pt", at, at, is_step_exact=True) for at in (100, 200, 300)]
    kept = [
        saved(f"kept_step_{at}.pt", at, 250 + at / 100, is_step_exact=True) for at in (150, 250)
    ]

    assert names([*often, *kept])[0] == "step_300.pt"


@pytest.mark.parametrize(
    "tags",
    [
        ("model_loss_0.912.pt", "model_loss_0.231.pt"),
        ("acc_74.pth", "acc_71.pth"),
        ("weights.08-0.41.pt", "weights.10-0.29.pt"),
        ("ckpt_loss=9.1e-04.pt", "ckpt_loss=1.2e-05.pt"),
        ("ant_ep_9_rew_55.2.pth", "ant_ep_10_rew_31.5.pth"),
    ],
)
def test_the_value_of_a_metric_counts_nothing(tags: tuple[str, str]) -> None:
    older, newer = tags

    assert names([saved(older, None, 1), saved(newer, None, 2)]) == [newer, older]


def test_a_series_whose_content_begins_anew_is_of_a_new_run() -> None:
    folds = [saved(f"fold{at}.pt", 900, at, is_step_exact=True) for at in (0, 1)]
    last = saved("fold2.pt", 300, 2, is_step_exact=True)

    assert names([*folds, last])[0] == "fold2.pt"
    assert evidence_of([*folds, last])["/c/fold1.pt"].reason is PlaceReason.EARLIER_RUN


def test_a_version_of_which_all_is_younger_comes_before_higher_steps_of_the_one_before() -> None:
    old = [saved(f"version_0/step={at}.ckpt", at, at, is_step_exact=True) for at in (300, 400)]
    new = saved("version_1/step=100.ckpt", 100, 900, is_step_exact=True)

    assert names([*old, new])[0] == "step=100.ckpt"
    assert names([*old, replace(new, modified_unix_s=350)])[0] == "step=400.ckpt"


def test_the_number_of_a_run_may_be_the_last_one_of_the_name() -> None:
    old = [saved(f"ep{at}_run1.pt", at, at) for at in (4, 5)]
    new = [saved(f"ep{at}_run2.pt", at, 90 + at) for at in (1, 2)]

    assert names([*old, *new])[:2] == ["ep2_run2.pt", "ep1_run2.pt"]


def test_final_with_a_higher_step_than_all_others_is_no_copy_and_ema_may_be_one() -> None:
    series = [saved(f"iteration={at}.pt", at, at) for at in (400, 800)]

    assert names([*series, saved("final_iteration=1000.pt", 1000, 1000)])[0].startswith("final")
    assert names([*series, saved("ema_iteration=1000.pt", 1000, 1000)])[0] == "iteration=800.pt"


def test_a_copy_that_is_younger_than_its_successor_does_not_move_behind_it() -> None:
    series = [saved("step-300.pt", 300, 10), saved("step-90.pt", 90, 90)]

    assert names([*series, saved("best.pt", None, 50)]) == ["step-300.pt", "step-90.pt", "best.pt"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_of_the_listing_does_not_count(order: tuple[int, ...]) -> None:
    all_of_them = [saved("a.pt", None, 7), saved("step-2.pt", 2, 7), saved("step-1.pt", 1, 7)]

    assert names([all_of_them[at] for at in order])[:2] == ["step-2.pt", "step-1.pt"]


def test_what_is_newer_by_its_place_or_its_time_is_passed_over_and_no_other_name_is() -> None:
    verdicts = [
        CheckpointVerdict(saved("step-3.pt", 3, 300), False, "torn", Hindrance.DAMAGED),
        CheckpointVerdict(saved("last.pt", None, 290), False, "a link", Hindrance.ALIAS),
        CheckpointVerdict(saved("step-2.pt", 2, 200), True, "complete"),
        CheckpointVerdict(saved("step-1.pt", 1, 250), False, "older", Hindrance.UNREAD),
        CheckpointVerdict(saved("step-0.pt", 0, 100), False, "older", Hindrance.UNREAD),
    ]

    found = [verdict.candidate.tag for verdict in passed_over(verdicts, "/c/step-2.pt")]

    assert found == ["step-3.pt", "step-1.pt"]


def test_directory_and_tag_are_what_deepspeed_takes() -> None:
    candidate = saved("global_step10", 10, 1)

    assert (candidate.directory, candidate.tag) == ("/c", "global_step10")


SLOTS = ("/c", "ckpt_#.pt")


@pytest.mark.parametrize("times", [(20, 10), (30, 10, 20), (20, 30, 10)])
def test_slots_that_were_overwritten_in_turn_are_ordered_by_time(times: tuple[int, ...]) -> None:
    slots = [saved(f"ckpt_{at}.pt", at, time) for at, time in enumerate(times)]

    assert find_slots(slots) == {SLOTS}
    newest = newest_first(slots, lambda one: one, {SLOTS})
    assert [one.modified_unix_s for one in newest] == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("name", "numbers", "times"),
    [
        ("ckpt_{}.pt", (0, 1), (10, 20)),  # not overwritten yet, or a count
        ("ckpt_{}.pt", (1, 2, 3), (10, 30, 20)),  # copied: times in no order
        ("ckpt_{}.pt", (10, 20), (20, 10)),
        ("ckpt_{}.pt", (2, 3), (20, 10)),  # older ones were removed: a count
        ("ckpt_{}.pt", (0, 1, 2, 3), (40, 10, 20, 30)),
        ("step_{}.pt", (0, 1), (20, 10)),
        ("model_epoch{}.pt", (0, 1), (20, 10)),
        ("{}.pt", (0, 1), (20, 10)),
    ],
)
def test_numbers_that_may_count_steps_are_no_slots(
    name: str, numbers: tuple[int, ...], times: tuple[int, ...]
) -> None:
    series = [
        saved(name.format(number), number, time)
        for number, time in zip(numbers, times, strict=True)
    ]

    assert find_slots(series) == set()


def test_files_whose_content_has_a_step_are_no_slots() -> None:
    exact = [saved(f"ckpt_{at}.pt", 9 - at, -at, is_step_exact=True) for at in range(2)]

    assert find_slots(exact) == set()


def test_of_two_jobs_in_one_folder_that_of_the_ranks_counts() -> None:
    """Nothing in names or contents tells them apart; the other one's is younger."""
    ours = [saved(f"llama_{step}.pt", step, 100.0 * step) for step in (1, 2)]
    others = [saved(f"qwen_{step}.pt", step, 1000.0 * step) for step in (1, 2)]

    seen = list(mark_written([*ours, *others], ["/c/.llama_2.pt.tmp", "/elsewhere/qwen_2.pt"]))

    assert names([*ours, *others])[0] == "qwen_2.pt"
    assert names(seen)[:2] == ["llama_2.pt", "llama_1.pt"]
    assert evidence_of(seen)["/c/qwen_2.pt"].reason is PlaceReason.UNSEEN
    assert "written by this job's ranks" in say_evidence(evidence_of(seen)["/c/llama_1.pt"])


def test_what_is_seen_of_a_write_never_outranks_what_a_file_is() -> None:
    series = [saved(f"step_{step}.pt", step, 100.0 * step) for step in (1, 2)]
    metrics = saved("metrics.pt", None, 1000.0)

    assert names(list(mark_written([*series, metrics], ["/c/metrics.pt"])))[0] == "step_2.pt"


@pytest.mark.parametrize(
    ("path", "is_its"),
    [
        ("/c/step_9.pt", True),
        ("/c/step_12.pt.tmp", True),
        ("/c/.step_12.pt-partial", True),
        ("/c/step_12.pt/shard_0.bin", True),
        ("/c/step_12.ptx", False),
        ("/c/best_step_12.pt", False),
        ("/c/d/step_12.pt", False),
        ("/step_12.pt", False),
        ("", False),
    ],
)
def test_a_write_is_of_a_candidates_kind_by_its_name(path: str, is_its: bool) -> None:
    (seen,) = mark_written([saved("step_10.pt", 10, 1.0)], [path])

    assert seen.by_ranks is is_its
