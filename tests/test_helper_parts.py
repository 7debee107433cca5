"""What is made of the configuration: every series is a registered one, and nobody is asked in vain."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent import helper_parts
from agent.collectors.disk_health import DiskHealthCollector
from agent.collectors.ipmi import IpmiCollector, IpmiEventsCollector
from agent.collectors.redfish import show, walk_bmc
from agent.collectors.thermal import ThermalCollector
from agent.metrics import Metric
from agent.root_helper.protocol import Answer, Outcome, Query, Result
from agent.runner import Outcome as RunOutcome
from agent.runner import Slot
from rankmend.errors import NoSourceError, SourceError
from tests.agent_support import ROOT, FakeClock

FIXTURES = ROOT / "tests" / "fixtures"
FILES = {
    Query.IPMI_SENSORS: {"full": "ipmi/sdr-full.csv", "compact": "ipmi/sdr-compact.csv"},
    Query.IPMI_EVENTS: {"info": "ipmi/sel-info.txt", "list": "ipmi/sel.csv"},
    Query.DISK_SMART: {
        "sda": "disk-health/smartctl-ata.json",
        "nvme0": "disk-health/smartctl-nvme.json",
    },
    Query.NVME_SMART: {"nvme0": "disk-health/nvme-1.json"},
}


def ask(query: Query) -> Answer:
    results = tuple(
        Result(name, Outcome.ANSWERED, 0, (FIXTURES / file).read_text())
        for name, file in FILES[query].items()
    )
    return Answer(query, 0.0, results)


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
    slot = Slot(make(), 60.0, clock)

    slot.run()

    view = slot.view(clock.now_s())
    assert (view.outcome, view.error) == (RunOutcome.MEASURED, "")
    assert len(view.metrics) > 3


def test_collectors_are_those_of_the_list() -> None:
    collectors = helper_parts.make_collectors(helper_parts.Redfish(), ask, FakeClock())

    assert tuple(collector.name for collector in collectors) == helper_parts.COLLECTORS


def test_beside_a_recorded_tree_no_helper_is_asked(tmp_path: Path) -> None:
    ask_nobody = helper_parts.make_ask(str(tmp_path / "helper.sock"), FakeClock(), is_live=False)

    with pytest.raises(NoSourceError, match="recorded tree"):
        ask_nobody(Query.DISK_SMART)
