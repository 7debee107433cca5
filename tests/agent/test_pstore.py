"""The panic of the previous boot: which records count, and what a node says of it."""

import os
from pathlib import Path

import pytest

from agent.collectors.pstore import AFTER_BOOT_S, BEFORE_BOOT_S, PstoreCollector
from rankmend.errors import NoSourceError, SourceError

BOOTED_AT_S = 1_764_000_000
PANIC = """Panic#1 Part1
<4>[  812.104512] NVRM: GPU at PCI:0000:1b:00: GPU-aa
<0>[  812.204512] Kernel panic - not syncing: Fatal exception in interrupt
<0>[  812.304512] Kernel Offset: 0x1e000000 from 0xffffffff81000000
"""


class Node:
    def __init__(self, folder: Path) -> None:
        self.sysfs, self.procfs, self.archive = folder / "sys", folder / "proc", folder / "kept"
        (self.sysfs / "fs" / "pstore").mkdir(parents=True)
        self.procfs.mkdir()
        (self.procfs / "stat").write_text(f"cpu  1 2 3\nbtime {BOOTED_AT_S}\n")

    def record(self, text: str, at_s: float, place: Path | None = None) -> None:
        path = (place or self.sysfs / "fs" / "pstore") / "dmesg-efi-176399000001001"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (at_s, at_s))

    def reasons(self) -> list[str]:
        found = list(PstoreCollector(self.sysfs, self.procfs, self.archive).collect())
        assert {(metric.name, metric.value) for metric in found} <= {
            ("rankmend_host_previous_boot_panic", 1)
        }
        return [metric.labels[0][1] for metric in found]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_panic_of_the_previous_boot_is_shown_in_the_kernels_words(node: Node) -> None:
    node.record(PANIC, BOOTED_AT_S - 180)

    assert node.reasons() == ["Fatal exception in interrupt"]


def test_panic_that_systemd_has_moved_away_is_found(node: Node) -> None:
    node.record(PANIC, BOOTED_AT_S + 5, node.archive / "1763990000")

    assert node.reasons() == ["Fatal exception in interrupt"]


@pytest.mark.parametrize(
    ("at_s", "counts"),
    [
        (BOOTED_AT_S - BEFORE_BOOT_S, True),
        (BOOTED_AT_S - BEFORE_BOOT_S - 1, False),
        (BOOTED_AT_S + AFTER_BOOT_S, True),
        (BOOTED_AT_S + AFTER_BOOT_S + 1, False),
    ],
)
def test_record_that_is_years_old_is_no_panic_of_the_previous_boot(
    node: Node, at_s: float, counts: bool
) -> None:
    node.record(PANIC, at_s)

    assert bool(node.reasons()) is counts


@pytest.mark.parametrize("text", ["Oops#1 Part1\n<1>BUG: unable to handle page fault\n", "", "\0"])
def test_what_did_not_end_the_boot_is_no_panic(node: Node, text: str) -> None:
    node.record(text, BOOTED_AT_S - 60)

    assert node.reasons() == []


def test_panic_without_its_line_is_one_of_unknown_cause(node: Node) -> None:
    node.record("Panic#2 Part3\n<4>[  1.0] a line of another part\n", BOOTED_AT_S - 60)

    assert node.reasons() == ["of unknown cause"]


def test_reason_is_bounded_and_printable(node: Node) -> None:
    node.record("Kernel panic - not syncing: \x1b[31m" + "x" * 9_000, BOOTED_AT_S - 60)

    (reason,) = node.reasons()
    assert reason.isprintable()
    assert len(reason) == 160


def test_kernel_without_a_store_is_absent_and_one_without_a_boot_time_broken(node: Node) -> None:
    (node.procfs / "stat").write_text("cpu 1\n")
    with pytest.raises(SourceError, match="btime"):
        node.reasons()

    (node.procfs / "stat").write_text("btime 5\n")
    (node.sysfs / "fs" / "pstore").rmdir()
    with pytest.raises(NoSourceError):
        node.reasons()
