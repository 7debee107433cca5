"""The fork server's memory lies in huge pages, so that its forks begin and end quickly."""

import json
import platform
import subprocess
import sys
from typing import Any

import pytest

from tests.support.hook import ROOT, each_python

pytestmark = pytest.mark.process
LINUX = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])

JOINED = """
import json, mmap, os, sys
sys.path.insert(0, sys.argv[1])
from rankmend.hook import huge_pages

def memory():
    with open("/proc/self/smaps_rollup") as file:
        rows = (line.split() for line in file)
        return {row[0]: int(row[1]) for row in rows if row[0] in ("Rss:", "AnonHugePages:")}

MB = 1 << 20
content = os.urandom(MB)
full, sparse, shared = (mmap.mmap(-1, 64 * MB, flags) for flags in (
    mmap.MAP_PRIVATE, mmap.MAP_PRIVATE, mmap.MAP_SHARED))
for place in range(0, 64 * MB, MB):
    full[place:place + MB] = shared[place:place + MB] = content
    sparse[place] = 1
before = memory()
huge_pages.join()
after = memory()
is_same = all(full[place:place + MB] == content for place in range(0, 64 * MB, MB))
print(json.dumps([before, after, is_same]))
"""


def joined(python: str, before: str = "") -> tuple[dict[str, Any], dict[str, Any], bool]:
    command = [python, "-S", "-c", before + JOINED, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, then, is_same = json.loads(done.stdout)
    return first, then, is_same


@pytest.mark.skipif(LINUX < (6, 1), reason="Linux before 6.1 joins no memory on request")
@each_python
def test_full_memory_is_joined_and_sparse_memory_is_not_filled(python: str) -> None:
    before, after, is_same = joined(python)

    assert after["AnonHugePages:"] - before["AnonHugePages:"] >= 32 << 10
    assert after["Rss:"] - before["Rss:"] < 32 << 10
    assert is_same


NO_HUGE_PAGES = "import ctypes; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)\n"  # PR_SET_THP_DISABLE


def test_where_huge_pages_are_forbidden_everything_stays_as_it_is() -> None:
    _before, after, is_same = joined(sys.executable, NO_HUGE_PAGES)

    assert after["AnonHugePages:"] == 0
    assert is_same


CLOSE = """
import sys
sys.path.insert(0, sys.argv[1])
from rankmend.hook import memory_limit
memory_limit.read = lambda: {factor} * memory_limit.resident()
"""


@pytest.mark.parametrize(("factor", "is_joined"), [(15, False), (64, True)])
def test_nothing_is_joined_where_a_limit_of_memory_is_close(factor: int, is_joined: bool) -> None:
    if is_joined and LINUX < (6, 1):
        pytest.skip("Linux before 6.1 joins no memory on request")

    _before, after, _is_same = joined(sys.executable, CLOSE.format(factor=factor))

    assert (after["AnonHugePages:"] > 0) == is_joined
