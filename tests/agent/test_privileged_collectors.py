"""What is made of the configuration: every series is a registered one, and nobody is asked in vain."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.assembly import privileged
from agent.assembly.families import FAMILIES
from agent.collectors.disk_health import DiskHealthCollector
from agent.collectors.ipmi import IpmiCollector, IpmiEventsCollector
from agent.collectors.redfish import show, walk_bmc
from agent.collectors.thermal import ThermalCollector
from agent.metrics import Metric
from agent.root_helper.questions import HelperAnswer, HelperQuery, ProgramOutcome, ProgramResult
from agent.sampling.collection import CollectorOutcome, Slot
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import ROOT, FakeClock

FIXTURES = ROOT / "tests" / "fixtures"
FILES = {
    HelperQuery.IPMI_SENSORS: {"full": "ipmi/sdr-full.csv", "compact": "ipmi/sdr-compact.csv"},
    HelperQuery.IPMI_EVENTS: {"info": "ipmi/sel-info.txt", "list": "ipmi/sel.csv"},
    HelperQuery.DISK_SMART: {
        "sda": "disk-health/smartctl-ata.json",
        "nvme0": "disk-health/smartctl-nvme.json",
    },
    HelperQuery.NVME_SMART: {"nvme0": "disk-health/nvme-1.json"},
}


def ask(query: HelperQuery) -> HelperAnswer:
    results = tuple(
        ProgramResult(name, ProgramOutcome.ANSWERED, 0, (FIXTURES / file).read_text())
        for name, file in FILES[query].items()
    )
    return HelperAnswer(query, 0.0, results)


class RecordedBmc:
    """A collector over a recorded BMC, without the network."""

    name = "redfish"
    interval_s = 120.0
    requests = 0

    def __init__(self, file: str) -> None:
        self._pages = json.loads((FIXTURES / "redfish" / file).read_text())

    def get(self, path: str, deadline_s: float) -> dict[str, Any]:
        if path not in self._pages:
            raise SourceError(f"no {path}")
        page = self._pages[path]
        assert isinstance(page, dict)
        return page

    def close(self) -> None:
        pass

    def collect(self) -> list[Metric]:
        return list(show(walk_bmc(self, 60.0), self.requests))


@pytest.mark.parametrize(
    "make",
    [
        lambda: IpmiCollector(ask),
        lambda: IpmiEventsCollector(ask),
        lambda: DiskHealthCollector(ask),
        lambda: RecordedBmc("new.json"),
        lambda: RecordedBmc("old.json"),
        lambda: ThermalCollector(FIXTURES / "sys-hwmon" / "sys"),
    ],
    ids=["ipmi", "ipmi_events", "disk_health", "redfish-new", "redfish-old", "thermal"],
)
def test_runner_takes_every_series_of_the_collector(make: Callable[[], Any]) -> None:
    clock = FakeClock()
    slot = Slot(make(), 60.0, clock, FAMILIES)

    slot.run()

    view = slot.view(clock.now_s())
    assert (view.outcome, view.error) == (CollectorOutcome.MEASURED, "")
    assert len(view.metrics) > 3


def test_collectors_are_those_of_the_list() -> None:
    collectors = privileged.make_collectors(privileged.RedfishSettings(), ask, FakeClock())

    assert tuple(collector.name for collector in collectors) == privileged.COLLECTORS


def test_beside_a_recorded_tree_no_helper_is_asked(tmp_path: Path) -> None:
    ask_nobody = privileged.make_ask(str(tmp_path / "helper.sock"), FakeClock(), is_live=False)

    with pytest.raises(NoSourceError, match="recorded tree"):
        ask_nobody(HelperQuery.DISK_SMART)
