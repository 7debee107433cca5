"""The pod of a rank: by its control group, named by the kubelet's folders, and nothing where neither tells."""

from pathlib import Path

from agent.jobs.processes import RankPod, RankPods

UID = "0b6f1c1e-6f0e-4c62-9a52-6a9a5a1f3a11"
SYSTEMD = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-1.scope\n"


def node(folder: Path, cgroup: str) -> Path:
    (folder / "proc/41").mkdir(parents=True)
    (folder / "proc/41/cgroup").write_text(cgroup)
    (folder / "pods").mkdir()
    return folder


def test_a_rank_in_a_pod_has_its_name_as_soon_as_the_kubelet_has_its_folder(tmp_path: Path) -> None:
    folder = node(tmp_path, SYSTEMD)
    pods = RankPods(folder / "proc", folder / "pods")

    before = pods.of(41)
    (folder / "pods" / f"team_train-0_{UID}").mkdir()

    assert before == RankPod(UID)
    assert pods.of(41) == RankPod(UID, "team", "train-0")


def test_a_rank_outside_of_pods_or_gone_has_none(tmp_path: Path) -> None:
    folder = node(tmp_path, "0::/system.slice/slurmstepd.scope/job_12/step_0\n")
    pods = RankPods(folder / "proc", folder / "pods")

    assert (pods.of(41), pods.of(42)) == (None, None)


def test_without_the_folder_of_logs_the_uid_remains(tmp_path: Path) -> None:
    folder = node(tmp_path, SYSTEMD)

    assert RankPods(folder / "proc", None).of(41) == RankPod(UID)
