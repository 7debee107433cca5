"""Services as a real systemd shows them, one that fails, one that runs and one that is disabled."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.systemd import Bed, running_systemd, why_not

pytestmark = pytest.mark.site

# By default systemd gives up after 5 starts in 10 s, which a busy machine may not make.
_UNIT = "[Unit]\nStartLimitIntervalSec=1h\n[Service]\nExecStart={program}\n{more}[Install]\nWantedBy=testbed.target\n"
_COLLECT = """
import json
from pathlib import Path
from agent.collectors.services import ServicesCollector, Systemctl
collector = ServicesCollector(Path("/sys"), Systemctl(), required=["slurmd", "nowhere"])
print(json.dumps([[m.name, list(dict(m.labels).values()), m.value] for m in collector.collect()]))
"""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    if reason := why_not():
        pytest.skip(reason)
    units = tmp_path / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    restarts = "Restart=on-failure\nRestartSec=10ms\n"
    for name, program, more in (
        ("munge", "/bin/sleep infinity", ""),
        ("nvidia-fabricmanager", "/bin/false", restarts),
        ("slurmd", "/bin/sleep infinity", ""),
        ("opensm", "/bin/sleep infinity", ""),
    ):
        (units / f"{name}.service").write_text(_UNIT.format(program=program, more=more))
    with running_systemd(tmp_path) as bed:
        yield bed


@pytest.mark.component("systemd")
def test_real_units_that_run_fail_and_are_missing_are_told_apart(bed: Bed) -> None:
    bed.run("systemctl", "enable", "--now", "munge", "nvidia-fabricmanager")  # opensm: disabled
    bed.wait_for(
        lambda: bed.show("nvidia-fabricmanager", "ActiveState") == "failed", "systemd to give up"
    )

    answer = bed.run("/opt/rankmend/bin/python", "-c", _COLLECT).stdout
    found = {(name, labels[0]): (labels[1:], value) for name, labels, value in json.loads(answer)}

    active = {unit: value for (name, unit), (_, value) in found.items() if "_active" in name}
    assert active.pop("munge.service") == 1
    assert active.pop("nvidia-fabricmanager.service") == 0
    assert active.pop("slurmd.service") == 0  # required and stopped
    assert active.pop("nowhere.service") == 0  # required and not installed
    assert "opensm.service" not in active
    state, _ = found["rankmend_service_info", "nvidia-fabricmanager.service"]
    assert state[:3] == ["loaded", "failed", "failed"]
    restarts = found["rankmend_service_restarts_total", "nvidia-fabricmanager.service"][1]
    assert restarts > 0
