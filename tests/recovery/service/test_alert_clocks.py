"""Alerts of nodes whose clock is wrong, at a controller: they count, and they end."""

from pathlib import Path

import pytest

from rankmend.alerting import Alert, AlertmanagerTarget, make_post, target_url
from rankmend.clock import SystemClock
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import make_folder, running

pytestmark = pytest.mark.process


class WrongClock(SystemClock):
    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def unix_s(self) -> float:
        return super().unix_s() + self._ahead_s


@pytest.mark.parametrize("ahead_s", [-3600.0, 86_400.0])
def test_alert_of_a_node_whose_clock_is_wrong_fires_and_ends(
    tmp_path: Path, ahead_s: float
) -> None:
    folder, clock = tmp_path / "files", WrongClock(ahead_s)
    make_folder(folder)
    labels = {"alertname": "RankmendGpuLost", "node": "n1", "uuid": "GPU-0", "severity": "critical"}
    with running(folder) as up:

        def firing() -> list[float]:
            worker = up.service.worker
            active = worker.call(lambda: list(worker.desk.alerts.active)).result(DEADLINE_S)
            return [one.started_unix_s for one in active if one.is_firing]

        post = make_post(ca_file=str(up.ca), token_file=str(folder / "admin.token"))
        target = AlertmanagerTarget(target_url(up.url), clock, post)
        target.start()
        began_s = SystemClock().unix_s()
        target.update([Alert(labels, {}, clock.unix_s())])
        eventually(lambda: len(firing()) == 1, "the alert")
        assert abs(firing()[0] - began_s) < 600  # it is as fresh as it is on the node

        target.update([])
        eventually(lambda: not firing(), "its end")
        target.stop()
