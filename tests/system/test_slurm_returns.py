"""Nodes that were drained in a real Slurm come back after their check, unless a person or their past says no."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from rankmend.clock import SystemClock
from recovery.journal.store import Journal
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.commands import SlurmCommands
from recovery.schedulers.slurm.desk import SlurmDesk
from recovery.schedulers.slurm.ledger import NodeHistory
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from recovery.schedulers.slurm.return_rules import Stay
from tests.support.eventually import eventually
from tests.support.slurm import SlurmCluster, missing, slurm_cluster

pytestmark = pytest.mark.site
# Passes where a file says that the node is repaired.
CHECK = (
    "import os, sys; node = os.path.join(sys.argv[1], sys.argv[2]); "
    "print('looked at', sys.argv[2]); sys.exit(0 if os.path.exists(node) else 3)"
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if reason := missing():
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), 2) as cluster:
        yield cluster


class Site:
    """The part of a controller that acts on Slurm, and a folder that says which nodes are repaired."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm, self.folder, self.repaired = slurm, folder, folder / "repaired"
        self.repaired.mkdir()
        self.limits = SlurmLimits(
            enabled=True,
            act=True,
            timeout_s=15.0,
            nodes_drained_percent=100.0,
            return_check=(sys.executable, "-c", CHECK, str(self.repaired), "{node}"),
            return_after_s=0.5,
            return_pause_s=0.5,
            offences_max=3,
        )
        self._open()

    def _open(self) -> None:
        self.journal = Journal(self.folder / "journal.db", SystemClock(), "boot")
        environment = {"PATH": os.environ["PATH"], **self.slurm.environment}
        self.desk = SlurmDesk(
            self.journal,
            SlurmClient(SlurmCommands(self.limits.timeout_s, environment)),
            self.limits,
            SystemClock(),
            self.folder / "scripts",
            settle_s=1.0,
            look_s=0.5,
            drains_look_s=0.5,
        )

    def close(self) -> None:
        self.desk.returns.stop()
        self.journal.close()

    def restart(self) -> None:
        self.close()
        self._open()

    def turn_until(self, is_so: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            if not is_so():
                self.desk.turn()
                return False
            return True

        eventually(look, lambda: f"{what}: {self.desk.ledger.nodes}", pause_s=0.2)

    def check_another(self, node: str, key: str) -> None:
        """Drain a node that is not repaired, and have it checked twice: so often were all nodes looked at."""
        self.drain(node, key)
        self.turn_until(lambda: self.past(node).check_count >= 2, "two checks have failed")

    def drain(self, node: str, key: str) -> None:
        self.desk.ask(SchedulerRequest(key, SchedulerAction.DRAIN, (node,), reason="GPU 3 is bad"))
        self.turn_until(lambda: self.desk.ledger.works[key].ended is not None, key)
        assert self.state(node).startswith(("drained ", "draining ")), self.state(node)

    def past(self, node: str) -> NodeHistory:
        return self.desk.ledger.history(node)

    def ended_returns(self) -> list[str]:
        works = self.desk.ledger.works.values()
        is_return = SchedulerAction.RESUME
        return [one.ended.text for one in works if one.ended and one.request.action is is_return]

    def stay(self, node: str) -> Stay | None:
        standing = self.desk.returns.standings.get(node)
        return None if standing is None else standing.stay

    def state(self, node: str) -> str:
        words = ("sinfo", "--noheader", f"--nodes={node}", "--format=%T %E")
        # "idle*", "drained*": Slurm has not heard it since the change.
        return self.slurm.run(*words).stdout.strip().replace("* ", " ", 1)


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Site]:
    made = Site(slurm, tmp_path)
    yield made
    made.close()
    slurm.run("scancel", "--user=root")
    for node in slurm.nodes:
        slurm.run("scontrol", "update", f"nodename={node}", "state=undrain")
    slurm.wait_until_idle()


def test_a_node_stays_out_until_its_check_passes_also_over_a_restart(site: Site) -> None:
    site.drain("node1", "inc-1")
    site.turn_until(lambda: site.past("node1").check_count >= 2, "two checks have failed")
    assert site.state("node1").startswith("drained rankmend: GPU 3 is bad #")
    site.restart()

    (site.repaired / "node1").touch()
    site.turn_until(lambda: not site.past("node1").is_ours, "the node is back")

    assert site.state("node1") == "idle none"
    texts = [one.text for one in site.past("node1").events]
    assert texts[:2] == ["GPU 3 is bad", "return_check failed (exit code 3): looked at node1"]
    assert texts[-2:] == ["return_check passed: looked at node1", "its check has passed"]


def test_a_node_is_not_checked_before_its_job_has_ended(site: Site, slurm: SlurmCluster) -> None:
    (site.repaired / "node1").touch()
    script = slurm.folder / "busy.sh"
    script.write_text("#!/bin/sh\n#SBATCH --output=/dev/null\nsleep 600\n")
    told = slurm.run("sbatch", "--nodelist=node1", str(script)).stdout
    number = told.split()[-1]
    site.turn_until(lambda: site.state("node1").startswith(("alloc", "mix")), "the job runs")
    site.drain("node1", "inc-2")
    site.turn_until(lambda: site.stay("node1") is Stay.BUSY, "the node is looked at")
    site.check_another("node2", "inc-2-other")
    assert site.past("node1").check_count == 0

    slurm.run("scancel", number)
    site.turn_until(lambda: not site.past("node1").is_ours, "the node is back")

    assert site.past("node1").check_count == 1


def test_a_node_whose_reason_a_person_has_changed_is_left_alone(
    site: Site, slurm: SlurmCluster
) -> None:
    site.drain("node2", "inc-3")
    site.turn_until(lambda: site.past("node2").check_count >= 1, "a check has failed")
    slurm.run("scontrol", "update", "nodename=node2", "state=drain", "reason=fan is loud")
    (site.repaired / "node2").touch()

    site.turn_until(lambda: not site.past("node2").is_ours, "the change is seen")
    checks = site.past("node2").check_count
    site.check_another("node1", "inc-3-other")

    assert site.state("node2") == "drained fan is loud"
    assert site.past("node2").check_count == checks
    assert "the reason was changed by root: fan is loud" in site.past("node2").over


@pytest.mark.safety
def test_a_third_offence_keeps_a_node_out_until_a_person_returns_it(site: Site) -> None:
    (site.repaired / "node1").touch()
    for number in range(2):
        site.drain("node1", f"inc-4-{number}")
        site.turn_until(lambda: not site.past("node1").is_ours, "the node is back")
    site.drain("node1", "inc-4-2")
    site.turn_until(lambda: site.stay("node1") is Stay.OFFENDER, "the offence is seen")
    site.check_another("node2", "inc-4-other")
    assert site.state("node1").startswith("drained rankmend: GPU 3 is bad #")
    assert site.past("node1").check_count == 0

    assert site.desk.take_back("node1", "ada", "board replaced")
    site.turn_until(lambda: not site.past("node1").is_ours, "the node is back")

    assert site.state("node1") == "idle none"


def test_the_return_is_only_told_while_acting_is_off(site: Site) -> None:
    site.drain("node1", "inc-5")
    site.limits = msgspec.structs.replace(site.limits, act=False)
    site.restart()
    (site.repaired / "node1").touch()

    site.turn_until(lambda: bool(site.ended_returns()), "the return is told")

    assert site.ended_returns()[0] == "would undrain node1"
    assert site.state("node1").startswith("drained rankmend: ")
