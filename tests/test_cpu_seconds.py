"""What `pytest --cpu-seconds` counts, and how it tells it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cpu_seconds import Cost, rows

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[1]
WORK_S = 0.5
# A test whose child leaves a process behind that works, and whose end nobody waits for.
SOURCE = f"""
import os, subprocess, sys

WORK = '''
import os, sys, time
if os.fork():
    os._exit(0)
while time.process_time() < {WORK_S}:
    pass
os.write(1, b"worked")
'''


def test_work():
    reading, writing = os.pipe()
    subprocess.run([sys.executable, "-c", WORK], stdout=writing, check=True)
    os.close(writing)
    assert os.read(reading, 10) == b"worked"
"""


def test_the_dearest_files_come_first() -> None:
    costs = {"tests/a.py": Cost(9.0, 1.0), "tests/b.py": Cost(3.0, 12.5), "tests/c.py": Cost()}

    assert rows(costs, 2) == [
        "   12.5 CPU-s     3.0 s  tests/b.py",
        "    1.0 CPU-s     9.0 s  tests/a.py",
    ]


@pytest.mark.parametrize("workers", [[], ["--numprocesses=1"]], ids=["alone", "worker"])
def test_work_of_a_process_that_nobody_waits_for_is_counted(
    tmp_path: Path, workers: list[str]
) -> None:
    (tmp_path / "test_work.py").write_text(SOURCE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.cpu_seconds"]
    command += ["-p", "no:cacheprovider", "--cpu-seconds=5", *workers, "test_work.py"]

    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    if "no cgroup: " in done.stdout:
        pytest.skip("this user may make no cgroup")
    (row,) = [line for line in done.stdout.splitlines() if line.endswith("  test_work.py")]
    assert float(row.split()[0]) >= WORK_S
