"""Ranks for the tests of the hook: real interpreters, with the folder a launcher gives them.

The interpreters are those in RANKMEND_TEST_PYTHONS (paths with colons between), else the two
ends of what the hook supports, from pyenv or from PATH, and always the one that runs the tests.
"""

import os
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from rankmend.hook import layout
from rankmend.progress import ProgressReader, RankIdentity, RankProgress, create
from tests.support.eventually import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
ENDS = ("3.8", "3.13")  # the oldest and the newest Python that the hook is tested on
RUN_S_MAX = 300.0  # a torch process needs 3 s alone and many times that on a busy machine
JOB_ID = uuid.UUID("6f1c1b52-6a5a-4e43-9a76-1f0b6f2f7a10")


@cache
def _find_python(version: str) -> str | None:
    """Return an interpreter of this version that starts, or None."""
    builds = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in [*map(str, reversed(builds)), f"python{version}"]:
        command = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
            )
        except OSError:
            continue
        if done.stdout.strip() == version:
            return candidate
    return None


def _parameters() -> Iterator[object]:
    given = os.environ.get("RANKMEND_TEST_PYTHONS")
    if given:
        for path in given.split(os.pathsep):
            yield pytest.param(path, id=Path(path).parent.parent.name)
        return
    yield pytest.param(sys.executable, id="own")
    for version in ENDS:
        path = _find_python(version)
        absent = pytest.mark.skip(reason=f"no Python {version} (RANKMEND_TEST_PYTHONS names one)")
        yield pytest.param(path, id=version, marks=[] if path else [absent])


each_python = pytest.mark.parametrize("python", list(_parameters()))


@dataclass
class Rank:
    """One progress file, and processes that are given it as the launcher gives it."""

    folder: Path
    name: str = "rank0"
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path = self.folder / self.name
        identity = RankIdentity(JOB_ID, 3, rank=0, local_rank=0, world_size=1)
        self.reader = ProgressReader(create(self.path, identity), self.name)
        self.site = self.folder / "site"
        if not self.site.exists():
            make_site(self.site)

    def __del__(self) -> None:
        self.reader.close()

    def variables(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RANKMEND_", "PYTHON", "COVERAGE_"))
        }
        return {
            **kept,
            "PYTHONPATH": str(self.site),
            layout.ENV_PROGRESS_FILE: str(self.path),
            layout.ENV_ATTEMPT: "3",
            layout.ENV_AUTO: "0",
            **self.environment,
        }

    def command(self, python: str, code: str, *flags: str) -> list[str]:
        return [python, *flags, "-c", textwrap.dedent(code)]

    def run(self, python: str, code: str, *flags: str) -> str:
        """Run this code to its end and return its stdout; it must exit with 0."""
        return self.run_command(self.command(python, code, *flags)).stdout

    def run_command(
        self, command: list[str], timeout_s: float = RUN_S_MAX
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            command,
            env=self.variables(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
        return done

    def start(self, python: str, code: str) -> "subprocess.Popen[str]":
        """Start this code with pipes to and from it; the caller ends it."""
        return subprocess.Popen(
            self.command(python, code),
            env=self.variables(),
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, records_max: int = 300) -> RankProgress:
        return self.reader.read(time.monotonic(), records_max)

    def steps(self) -> list[int]:
        return [record.step for record in self.read().records]


def with_torch_stand_in(rank: Rank, **modules: str) -> Rank:
    """Have a rank find these modules as those of `torch.distributed`, on a Python that has no PyTorch, too."""
    package = rank.folder / "lib" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .distributed_c10d import *")
    for name, text in modules.items():
        (package / f"{name}.py").write_text(text)
    rank.environment["PYTHONPATH"] = f"{rank.site}:{package.parent.parent}"
    return rank


def make_site(site: Path) -> None:
    """Make the folder that a launcher puts on its ranks' PYTHONPATH: two links."""
    site.mkdir()
    (site / "rankmend").symlink_to(ROOT / "rankmend")
    (site / "sitecustomize.py").symlink_to(ROOT / "rankmend/hook/site/sitecustomize.py")
