"""XIDs that `rankmend inject` tells: believed only where the agent is told to, and forgotten with their file."""

from pathlib import Path

import pytest

from agent.collectors.kernel_log import KernelLogCollector
from agent.findings.policy_files import load_policy
from detectors.kernel.event import EventKind
from rankmend.errors import SourceError
from rankmend.injected_log import read_injected, write_injected
from tests.support.agent import FakeClock

XID = "NVRM: Xid (PCI:0000:3b:00): 79, injected by rankmend inject"
SXID = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20001, Non-fatal, Link 0 injected by rankmend inject"


def collector(path: Path | None) -> KernelLogCollector:
    return KernelLogCollector(FakeClock(), load_policy(), None, injected_path=path)


@pytest.mark.parametrize(
    ("line", "kind", "code"), [(XID, EventKind.XID, 79), (SXID, EventKind.SXID, 20001)]
)
def test_injected_line_is_a_finding_until_its_file_is_removed(
    tmp_path: Path, line: str, kind: EventKind, code: int
) -> None:
    path = tmp_path / "inject" / "kernel-log"
    agent = collector(path)

    write_injected(path, line, "0123456789abcdef")
    during = agent.findings()
    path.unlink()
    after = agent.findings()

    assert [(one.kind, one.code) for one in during] == [(kind, code)]
    assert after == ()


def test_agent_that_is_not_told_to_believes_none(tmp_path: Path) -> None:
    write_injected(tmp_path / "inject" / "kernel-log", XID, "0123456789abcdef")

    assert collector(None).findings() == ()


def test_file_that_others_may_write_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "inject" / "kernel-log"
    write_injected(path, XID, "0123456789abcdef")
    path.chmod(0o666)

    with pytest.raises(SourceError, match="others may write to it"):
        read_injected(path)
    assert collector(path).findings() == ()


def test_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "inject" / "kernel-log"
    write_injected(path, XID, "0123456789abcdef")
    link = tmp_path / "link"
    link.symlink_to(path)

    assert collector(link).findings() == ()
