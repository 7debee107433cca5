"""Forged deaths against nodes on which a real Slurm has other people's jobs, and faults there that a second party sees, too."""

from pathlib import Path

import pytest

from recovery.journal.slurm_records import SlurmOutcome
from recovery.service.roles import Role
from tests.support.eventually import eventually
from tests.support.service import Forger, FullClient, add_subject, make_folder, running
from tests.support.slurm import missing, slurm_cluster

pytestmark = [pytest.mark.site, pytest.mark.safety]
POLICY = "[policy]\nevidence_wait_s = 0\n"
SLURM = "\n[slurm]\nenabled = true\nact = true\nnodes_drained_percent = 100.0\n"
OWNER = "root"  # whose jobs Slurm has here


def make_files(folder: Path) -> None:
    config = make_folder(folder)
    (folder / "policy.toml").write_text(POLICY)
    text = config.read_text().replace("#policy_file = ", f'policy_file = "{folder}/policy.toml" # ')
    config.write_text(text.replace("\n[slurm]\n", SLURM))
    for subject in (OWNER, "mallory"):
        add_subject(folder, subject)
    add_subject(folder, "alertmanager", Role.ALERT)


def accuse(alertmanager: FullClient, node: str) -> None:
    """Say that a GPU of the node is gone."""
    labels = {
        "alertname": "RankmendGpuLost", "node": node, "severity": "critical", "action": "drain",
    }  # fmt: skip
    alertmanager.post_alerts([{"labels": labels, "annotations": {"summary": "gone"}}])


def test_forged_deaths_drain_no_node_of_others_and_a_fault_with_a_second_witness_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mallory has nothing in Slurm. The owner's job has all nodes: node2 fails under it, and node3 by an alert, too."""
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "slurm").mkdir()
    with slurm_cluster(tmp_path / "slurm", 4) as slurm:
        monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
        make_files(tmp_path / "c")
        words = ("sbatch", "--nodes=4", "--output=/dev/null", "--wrap", "sleep 900")
        number = slurm.run(*words).stdout.split()[-1]

        def states() -> dict[str, str]:
            shown = slurm.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout
            return dict(line.split() for line in shown.splitlines())

        eventually(lambda: "idle" not in states().values(), "the job has all nodes", pause_s=0.5)
        with running(tmp_path / "c") as up:
            desk = up.service.slurm.desk  # type: ignore[union-attr]
            alertmanager = up.client("alertmanager")
            forger = Forger(up, "mallory", "node1", ("x-a", "x-b"))
            honest = Forger(up, OWNER, "node2", ("node4", "x-e"))
            helped = Forger(up, "mallory", "node3", ("x-c", "x-d"))

            def outcome_of(node: str) -> SlurmOutcome | None:
                works = list(desk.ledger.works.values())
                found = (work.nodes[node].outcome for work in works if node in work.nodes)
                return next(found, None)

            def are_decided() -> bool:
                for job in (forger, honest, helped):
                    job.turn()
                accuse(alertmanager, "node3")
                return None not in map(outcome_of, ("node1", "node2", "node3"))

            eventually(are_decided, lambda: f"{desk.ledger.works}\n{slurm.logs()}", pause_s=0.5)
            said = {one.nodes[0]: one.text for one in up.client("admin").slurm().requests}

            assert {node: outcome_of(node) for node in ("node1", "node2", "node3")} == {
                "node1": SlurmOutcome.REFUSED,
                "node2": SlurmOutcome.DONE,
                "node3": SlurmOutcome.DONE,
            }
            assert "by the word of launchers of mallory alone" in said["node1"]
            assert "Slurm has nothing of theirs on it" in said["node1"]
        after = states()
        job = slurm.run("scontrol", "show", "job", number, "--oneliner").stdout

    assert {node for node, state in after.items() if "drain" in state} == {"node2", "node3"}
    assert "JobState=RUNNING" in job, "Slurm ends no job on a node that it drains"
