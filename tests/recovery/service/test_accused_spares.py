"""Alerts about spares, which run nothing: a job that loses a node takes a spare that none of them rules out."""

from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.service import Running, Speaker, join_of, make_folder, running
from tests.support.service_bench import fail_rank

pytestmark = pytest.mark.process

NODES = ("t1", "t2", "t3", "t4")


class Crew:
    """Launchers of a job on two nodes with two spares, which obey what is ordered."""

    def __init__(self, up: Running) -> None:
        client = up.client()
        self.speakers: dict[str, Speaker] = {}
        for node in NODES:
            request = join_of(node, key="job:spares", name="spares", nodes_min=2, nodes_max=4)
            self.speakers[node] = Speaker(client, node, client.join(request).job_id)
            self.speakers[node].say()

    def turn(self) -> None:
        for speaker in self.speakers.values():
            if speaker.ask(wait_s=0.05) is not None:
                speaker.obey()
            else:
                speaker.say()

    @property
    def placed(self) -> list[str]:
        found = self.speakers.items()
        return [node for node, told in found if told.report is not None and told.report.ranks]


@pytest.mark.parametrize(
    ("accused", "taken"), [(("t3",), "t4"), (("t4",), "t3"), (("t3", "t4"), "t3"), ((), "t3")]
)
def test_a_spare_with_a_critical_alert_is_not_taken_while_a_healthy_one_waits(
    tmp_path: Path, accused: tuple[str, ...], taken: str
) -> None:
    make_folder(tmp_path / "c")
    with running(tmp_path / "c") as up:
        crew, admin = Crew(up), up.client("admin")

        def runs(nodes: set[str]) -> bool:
            crew.turn()
            return set(crew.placed) == nodes

        eventually(lambda: runs({"t1", "t2"}), "the job runs on the first two nodes")
        for node in accused:
            labels = {"alertname": "RankmendGpuLost", "node": node, "severity": "critical"}
            admin.post_alerts([{"labels": {**labels, "action": "replace"}}])
        admin.drain("t1", "fan")
        crew.turn()
        fail_rank(crew.speakers["t1"])
        eventually(lambda: runs({"t2", taken}), lambda: f"{taken} is taken: {crew.placed}")
