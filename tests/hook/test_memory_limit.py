"""How much memory a process may have, by recorded and by this machine's files."""

from pathlib import Path

import pytest

from rankmend.hook import memory_limit

GIB = 1 << 30


def make(root: Path, cgroup: str, files: dict[str, str]) -> tuple[str, str]:
    proc, cgroups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(cgroup)
    (proc / "meminfo").write_text(f"MemFree: 12 kB\nMemTotal:    {64 << 20} kB\n")
    for path, body in files.items():
        (cgroups / path).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / path).write_text(body + "\n")
    return str(proc), str(cgroups)


@pytest.mark.parametrize(
    ("cgroup", "files", "limit_gib"),
    [
        ("0::/\n", {}, 64),
        ("0::/kube/pod\n", {"kube/pod/memory.max": "max"}, 64),
        ("0::/kube/pod\n", {"kube/pod/memory.max": str(8 * GIB)}, 8),
        (
            "0::/kube/pod\n",
            {"kube/memory.max": str(4 * GIB), "kube/pod/memory.max": str(8 * GIB)},
            4,
        ),
        (
            "5:cpu,memory:/slurm/job\n3:pids:/other\n",
            {"memory/slurm/job/memory.limit_in_bytes": str(16 * GIB)},
            16,
        ),
        (
            # A container's view of version 1: its own path is not below its mount.
            "5:memory:/docker/f00\n",
            {"memory/memory.limit_in_bytes": str(2 * GIB)},
            2,
        ),
        ("5:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 64),
        ("3:pids:/job\n", {"job/memory.max": str(GIB)}, 64),
        ("0::/odd:name\n", {"odd:name/memory.max": "torn"}, 64),
    ],
)
def test_the_least_of_all_limits_holds(
    tmp_path: Path, cgroup: str, files: dict[str, str], limit_gib: int
) -> None:
    assert memory_limit.read(*make(tmp_path, cgroup, files)) == limit_gib * GIB


def test_this_machine_tells_its_own() -> None:
    assert 0 < memory_limit.resident() < memory_limit.read()
