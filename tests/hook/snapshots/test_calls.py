"""`rankmend.snapshot` and `rankmend.restore` as a script calls them, on each Python that the hook supports."""

from pathlib import Path

import pytest

from rankmend.hook import layout
from rankmend.progress import RankSnapshots
from tests.support.hook import JOB_ID, Rank, each_python

pytestmark = pytest.mark.process


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    numbers = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return Rank(
        tmp_path,
        environment={
            **numbers,
            "RANKMEND_JOB_ID": str(JOB_ID),
            layout.ENV_SNAPSHOTS: str(folder),
        },
    )


@each_python
def test_a_state_is_kept_and_given_back_to_the_next_process(rank: Rank, python: str) -> None:
    state = "{'step': 7, 'random': random.getstate(), 'seen': b'abc' * 1000, (1, None): 0.1}"
    rank.run(
        python,
        f"""
        import random, rankmend
        random.seed(4)
        assert rankmend.restore() is None
        for step in range(5, 8):
            assert rankmend.snapshot(step, {state})
            rankmend.step(step)
        """,
    )
    progress = rank.read()
    rank.environment[layout.ENV_SNAPSHOT] = "3:7"
    rank.run(
        python,
        f"""
        import random, rankmend
        random.seed(4)
        restored = rankmend.restore()
        assert (restored.step, restored.state) == (7, {state}), restored
        assert repr(restored) == "RestoredSnapshot(step=7)"
        """,
    )

    snapshots = progress.snapshots
    assert isinstance(snapshots, RankSnapshots)
    assert (snapshots.count, snapshots.refused, snapshots.newest_step) == (3, 0, 7)
    assert snapshots.level == 2
    assert 0 < snapshots.last_stall_s < snapshots.stalled_s
    assert snapshots.state_bytes > 3000
    assert progress.records[-1].checkpoint_s == 0, "the time of saves is told apart"
    assert rank.read().resumed_at_s is not None
    assert rank.read().snapshots is None  # a new process has kept none


@each_python
def test_without_a_launcher_or_a_folder_nothing_happens(rank: Rank, python: str) -> None:
    rank.environment[layout.ENV_SNAPSHOTS] = ""
    code = "import rankmend; print(rankmend.snapshot(1, {}), rankmend.restore())"

    assert rank.run(python, code) == "False None\n"
    assert rank.run(python, "import os; os.environ.pop('RANKMEND_PROGRESS_FILE');" + code) == (
        "False None\n"
    )
    assert list((rank.folder / "snapshots").iterdir()) == []


def test_a_state_that_cannot_be_kept_is_said_once_and_training_goes_on(rank: Rank) -> None:
    command = rank.command(
        "python3",
        """
        import rankmend
        state = {"optimizer": {"lr_lambda": lambda step: 1.0}}
        print([rankmend.snapshot(step, state) for step in (1, 2, -1, "x", 2**63)])
        """,
    )

    done = rank.run_command(command)

    assert done.stdout == "[False, False, False, False, False]\n"
    said = done.stderr.splitlines()
    assert said == [
        "rankmend: no snapshot is kept: state['optimizer']['lr_lambda']: function can't be kept. "
        "See docs/use/snapshots.md",
        "rankmend: snapshot() takes a step from 0 to 2**63 - 1, not int -1",
    ]
    snapshots = rank.read().snapshots
    assert snapshots is not None
    assert (snapshots.count, snapshots.refused, snapshots.newest_step) == (0, 5, None)


@each_python
def test_a_snapshot_that_cannot_be_given_back_ends_the_script(rank: Rank, python: str) -> None:
    rank.environment[layout.ENV_SNAPSHOT] = "2:40"

    out = rank.run(
        python,
        """
        import rankmend
        try:
            rankmend.restore()
        except rankmend.RestoreError as error:
            print(error)
        """,
    )

    assert out.startswith("cannot restore the snapshot of step 40, attempt 2: ")
    assert "rank-0.0.snapshot is not there" in out


def test_neither_a_forked_worker_nor_a_second_process_keeps_a_snapshot(rank: Rank) -> None:
    out = rank.run(
        "python3",
        """
        import os, subprocess, sys, rankmend
        assert rankmend.snapshot(1, {"who": "the rank"})
        pid = os.fork()
        if not pid:
            os._exit(rankmend.snapshot(2, {"who": "a worker"}))
        print(os.waitpid(pid, 0)[1], flush=True)
        code = "import rankmend; print(rankmend.snapshot(3, {}))"
        subprocess.run([sys.executable, "-c", code], check=True)
        """,
    )

    assert out == "0\nFalse\n"
    assert [path.name for path in (rank.folder / "snapshots").iterdir()] == ["rank-0.0.snapshot"]
