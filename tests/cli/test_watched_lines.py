"""What `rankmend status` says of jobs that other launchers have started."""

import io

from rich.console import Console

from rankmend.cli.watched_lines import is_named, render_ranks, render_watched
from recovery.api import wire
from recovery.local.report.overview import StoredRankView

FINDING = wire.WatchedFinding(
    "rank_hung", "rank", "no rank advances", "n2", [2], ["/proc/PID/stat: rank 2: stopped"]
)


def view(**changes: object) -> wire.WatchedView:
    values: dict[str, object] = {
        "job_id": "6d0c4b1e-0000-4000-8000-000000000001",
        "name": "llama",
        "user": "ann",
        "launcher": "srun",
        "slurm_job": "41",
        "restarter": "",
        "attempt": 1,
        "world_size": 4,
        "ranks_seen": 4,
        "nodes": ["n1", "n2"],
        "step": 120,
        "step_s": 0.5,
        "state": "training",
        "state_age_s": 3.0,
        "reason": "",
    }
    return wire.WatchedView(**(values | changes))  # type: ignore[arg-type]


def shown(*jobs: wire.WatchedView) -> str:
    out = io.StringIO()
    console = Console(width=400, file=out)
    for line in render_watched(jobs):
        console.print(line)
    return out.getvalue()


def test_why_ranks_were_not_forked_stands_once_below_them() -> None:
    out = io.StringIO()
    why = "no rank had made a step"
    ranks = [
        StoredRankView(rank, rank, 100 + rank, start="fresh", why_not_forked=why if rank else None)
        for rank in range(4)
    ]

    for line in render_ranks(ranks):
        Console(width=100, file=out).print(line)

    assert out.getvalue().splitlines()[-1] == f"  not forked: ranks 1-3: {why}"
    assert out.getvalue().count(why) == 1


def test_job_that_trains_takes_one_line() -> None:
    assert shown(view()).splitlines() == [
        "llama  training  srun of ann, Slurm job 41, 4 ranks on 2 nodes, step 120, 0.5 s a step"
    ]


def test_hung_job_shows_its_evidence_and_what_is_done() -> None:
    text = shown(view(state="hung", reason="it waits for rank 2 on n2", findings=[FINDING], act="dry run: would drain n2", ranks_seen=3))  # fmt: skip

    assert "4 ranks (3 seen)" in text
    assert "it waits for rank 2 on n2" in text
    assert "/proc/PID/stat: rank 2: stopped" in text
    assert "dry run: would drain n2" in text


def test_name_that_a_terminal_would_obey_is_made_harmless() -> None:
    assert "\x1b" not in shown(view(name="a\x1b[2Jb", user="\x07"))


def test_job_is_named_by_its_beginning_its_uuid_or_its_number_in_slurm() -> None:
    assert all(is_named(view(), word) for word in ("lla", "6d0c", "41"))
    assert not is_named(view(), "4")
