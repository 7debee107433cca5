"""What the frameworks themselves write: recognised, its step read, and never trusted while torn."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.messages.candidates import CheckpointFormat
from tests.support.checkpoint_saves import find
from tests.support.framework_saves import missing, require

pytestmark = [pytest.mark.process, pytest.mark.torch]

ROOT = Path(__file__).resolve().parents[3]
# Name of the writer: libraries, format, tags newest first, steps newest first.
WRITERS = {
    "trainer": (
        ("transformers", "accelerate"),
        CheckpointFormat.TRAINER,
        ["checkpoint-4", "checkpoint-2"],
        [4, 2],
    ),
    "accelerate": (
        ("accelerate",),
        CheckpointFormat.ACCELERATE,
        ["checkpoint_1", "checkpoint_0"],
        [None, None],
    ),
    "lightning": (
        ("lightning",),
        CheckpointFormat.LIGHTNING,
        ["last.ckpt", "epoch=0-step=5.ckpt"],
        [15, 5],
    ),
    "orbax": (("orbax.checkpoint",), CheckpointFormat.ORBAX, ["20", "10"], [20, 10]),
    "deepspeed": (
        ("deepspeed",),
        CheckpointFormat.DEEPSPEED,
        ["global_step20", "global_step10"],
        [20, 10],
    ),
    "megatron": (
        ("megatron",),
        CheckpointFormat.MEGATRON_DIST,
        ["iter_0000020", "iter_0000010"],
        [20, 10],
    ),
    "pretrained": (
        ("transformers",),
        CheckpointFormat.SAFETENSORS,
        ["step_20", "step_10"],
        [20, 10],
    ),
}

PARALLEL = {"deepspeed", "megatron"}  # their libraries are from `make .venv/.parallel`
ONE_WRITE = {"commit_success.txt"}  # a sentence, of which nobody reads more than that it is there


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, int]]]:
    """What all frameworks that are there saved, by one process that imports once what they share."""
    names = [name for name in WRITERS if not missing_of(name)]
    folder = tmp_path_factory.mktemp("frameworks")
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.framework_saves", ",".join([*names, ""]), str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=560, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    yield folder, json.loads(done.stdout)
    shutil.rmtree(folder)


def missing_of(name: str) -> list[str]:
    libraries = (library.partition(".")[0] for library in WRITERS[name][0])
    return missing(*libraries, is_parallel=name in PARALLEL)


@pytest.fixture(params=WRITERS)
def saved(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """What this framework saved."""
    name: str = request.param
    libraries = (library.partition(".")[0] for library in WRITERS[name][0])
    require(*libraries, is_parallel=name in PARALLEL)
    folder, codes = request.getfixturevalue("saves")
    assert codes[name] == 0, (folder / f"{name}.log").read_text()[-3000:]
    return name, folder / name


def test_what_a_framework_saves_is_recognised_whole_and_in_order(saved: tuple[str, Path]) -> None:
    name, folder = saved
    _libraries, kind, tags, steps = WRITERS[name]

    verdicts = find(folder, enough=9)

    assert [verdict.candidate.tag for verdict in verdicts] == tags
    assert [verdict.candidate.step for verdict in verdicts] == steps
    assert {verdict.candidate.format for verdict in verdicts} == {kind}
    assert all(verdict.is_valid for verdict in verdicts), [one.reason for one in verdicts]


def test_a_save_that_was_killed_at_any_point_is_passed_over_for_the_one_before(
    saved: tuple[str, Path], tmp_path: Path
) -> None:
    name, folder = saved
    newest, before = WRITERS[name][2]
    shutil.copytree(folder, tmp_path / "saves")  # with the times of the files
    target = next((tmp_path / "saves").rglob(newest))
    files = [target] if target.is_file() else [one for one in target.rglob("*") if one.is_file()]
    files.sort(key=lambda file: file.stat().st_mtime_ns, reverse=True)
    assert len(files) == 1 or len(files) >= 3

    for file in files:  # the last one written first: the save ends earlier and earlier
        if file.name not in ONE_WRITE:
            os.truncate(file, file.stat().st_size // 2)
            assert _restored(tmp_path / "saves") == before, f"{file.name} was cut in half"
        file.unlink()
        assert _restored(tmp_path / "saves") == before, f"{file.name} was not written yet"


def _restored(folder: Path) -> str | None:
    """Return the name of the checkpoint that a restart would use."""
    verdicts = find(folder, enough=1)
    return next((verdict.candidate.tag for verdict in verdicts if verdict.is_valid), None)
