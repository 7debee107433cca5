"""Which job uses which GPU: processes of Slurm and pods, the job map, kubelet's checkpoint, ranks."""

import json
import os
import pwd
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from agent.collectors.gpu_jobs import GpuJobsCollector, JobPlaces, user_name
from agent.jobs import job_map, kubelet
from agent.jobs.gpu_job import JOBS_OF_GPU_MAX, GpuJob, merge
from agent.jobs.processes import pod_uid_of, read_process, slurm_job_of
from agent.nvml.known_gpus import GpuView, GroupView, MonitorState, MonitorView
from agent.nvml.monitor import GpuMonitor
from agent.ranks.table import RankSample
from agent.ranks.watched import WatchedJob
from rankmend.errors import NoSourceError, SourceError
from rankmend.progress import RankIdentity
from tests.support.agent import JOB_ID, checked, values_of

POD = "3f1c0a52-5d1e-4c3a-9a53-0c8f6d1b2a77"
SYSTEMD_POD = (
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"
)
MIG = "MIG-1f2e3d4c-0000-5000-8000-000000000001"
GPU = GpuView(
    index=0,
    uuid="GPU-a",
    pci_bus_id="0000:1b:00.0",
    age_s=0.5,
    is_lost=False,
    is_skipped=False,
    needs_reset=False,
    error="",
    errors=0,
    groups={"slow": GroupView(0.5, (("mig_info", ("1", "0", MIG, "1g.10gb"), 1.0),), 1)},
    seconds={},
    events={},
    xids={},
    processes=None,
)
VIEW = MonitorView(MonitorState.RUNNING, "", (GPU,), 1, (), 0, None, 0.01, 1)
NOWHERE = JobPlaces()
DEVICE = "0,GPU-a,0000:1b:00.0"


class FakeMonitor:
    def __init__(self, view: MonitorView) -> None:
        self.shown = view

    def view(self, wait_s: float = 0.0) -> MonitorView:
        return self.shown


def process(
    procfs: Path, pid: int, cgroup: str, uid: int = 1000, environment: bytes = b"", parent: int = 1
) -> None:
    folder = procfs / str(pid)
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "stat").write_text(f"{pid} (python) S {parent} 1 1 0\n")
    (folder / "environ").write_bytes(environment)


def checkpoint(devices: object, container: str = "train") -> bytes:
    entry = {"PodUID": POD, "ContainerName": container, "ResourceName": "nvidia.com/gpu"}
    entries = [{**entry, "DeviceIDs": devices, "AllocResp": "CmUK"}]
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {"nvidia.com/gpu": ["GPU-a"]}}
    return json.dumps({"Data": data, "Checksum": 1}).encode()


def read(
    pids: Sequence[int] = (),
    procfs: Path = Path("/nowhere"),
    places: JobPlaces = NOWHERE,
    ranks: Sequence[RankSample] = (),
    watched: Sequence[WatchedJob] = (),
    view: MonitorView = VIEW,
) -> dict[str, float]:
    gpu = replace(GPU, processes=tuple((pid, 1) for pid in pids))
    monitor = cast(GpuMonitor, FakeMonitor(replace(view, gpus=(gpu,))))
    names = {1000: "anna", 1001: "ben", 0: "root"}
    collector = GpuJobsCollector(
        monitor, 1.0, lambda: ranks, lambda: watched, procfs, places, lambda uid: names[uid]
    )
    return values_of(checked(collector.collect()))


@pytest.mark.parametrize(
    ("cgroups", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "42"),
        ("0::/system.slice/node01_slurmstepd.scope/job_42/step_batch/user/task_special", "42"),
        ("0::/docker/0a1b/system.slice/slurmstepd.scope/job_42/step_0", "42"),
        ("9:memory:/slurm/uid_1000/job_42/step_0/task_0\n1:name=systemd:/system.slice/x", "42"),
        ("9:memory:/slurm_node01/uid_1000/job_42\n4:devices:/slurm_node01/uid_1000/job_42", "42"),
        ("9:memory:/slurm/uid_1000/job_42\n4:devices:/slurm/uid_1000/job_43", ""),
        ("0::/system.slice/slurmd.service", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_42", ""),
        ("0::/anything/job_42", ""),
        ("0::/system.slice/slurmstepd.scope/job_42x", ""),
        ("", ""),
    ],
)
def test_slurm_job_is_what_its_own_control_group_says(cgroups: str, job: str) -> None:
    assert slurm_job_of(cgroups) == job


@pytest.mark.parametrize(
    ("cgroups", "pod"),
    [
        (f"0::/{SYSTEMD_POD}/cri-containerd-0a1b.scope", POD),
        (f"0::/kubelet.slice/kubelet-{SYSTEMD_POD}/cri-containerd-0a1b.scope", POD),  # kind
        (f"0::/kubepods/besteffort/pod{POD}/0a1b", POD),
        (f"4:memory:/kubepods/pod{POD}/0a1b\n1:cpu:/kubepods/pod{POD}/0a1b", POD),
        (f"0::/user.slice/kubepods/pod{POD}", ""),
        (f"0::/pod{POD}", ""),
        ("0::/kubepods/pod1234", ""),
    ],
)
def test_pod_is_what_the_control_group_of_kubelet_says(cgroups: str, pod: str) -> None:
    assert pod_uid_of(cgroups) == pod


def test_processes_of_a_slurm_job_give_one_series_with_its_user_and_name(tmp_path: Path) -> None:
    slurm = "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"
    told = b"A=b\0SLURM_JOB_ID=42\0SLURM_JOB_NAME=llama \x1b[2J\0"
    process(tmp_path, 300, slurm, environment=told)
    process(tmp_path, 301, slurm)
    process(tmp_path, 400, "/user.slice/session-1.scope", environment=b"SLURM_JOB_ID=41\0")

    values = read([300, 301, 400, 999], tmp_path)

    assert values == {f"gpu_job_info{{{DEVICE},,42,anna,llama ?[2J,,,,}}": 1}


def test_environment_names_the_job_only_where_no_control_group_can(tmp_path: Path) -> None:
    process(tmp_path, 300, "/", environment=b"SLURM_JOB_ID=42\0SLURM_JOB_NAME=one\0")
    slurm = "/system.slice/slurmstepd.scope/job_43"
    process(tmp_path, 301, slurm, environment=b"SLURM_JOB_ID=42\0SLURM_JOB_NAME=one\0")

    assert read_process(tmp_path, 300)[0] == GpuJob(slurm_job="42", job_name="one")
    assert read_process(tmp_path, 301)[0] == GpuJob(slurm_job="43")


def test_slurm_job_in_a_pod_keeps_its_user(tmp_path: Path) -> None:
    process(tmp_path, 300, f"/kubepods/pod{POD}/0a1b", environment=b"SLURM_JOB_ID=42\0")

    assert read([300], tmp_path) == {f"gpu_job_info{{{DEVICE},,42,anna,,,,,{POD}}}": 1}


def test_process_that_has_ended_tells_nothing(tmp_path: Path) -> None:
    assert read_process(tmp_path, 300) == (GpuJob(), None)


def test_job_of_two_users_is_given_to_neither(tmp_path: Path) -> None:
    slurm = "/system.slice/slurmstepd.scope/job_42"
    process(tmp_path, 300, slurm, uid=1000)
    process(tmp_path, 301, slurm, uid=1001)

    assert read([300, 301], tmp_path) == {f"gpu_job_info{{{DEVICE},,42,,,,,,}}": 1}


def test_rank_and_its_worker_are_the_job_of_their_launcher(tmp_path: Path) -> None:
    process(tmp_path, 100, "/")
    process(tmp_path, 300, "/", parent=100)
    rank = RankSample(RankIdentity(uuid.UUID(str(JOB_ID)), 1, 0, 0, 8), 100, "digits", None, "-")
    told = WatchedJob(JOB_ID, "digits", "anna", "srun", "42")

    values = read([100, 300], tmp_path, ranks=[rank], watched=[told])

    assert values == {f"gpu_job_info{{{DEVICE},{JOB_ID},42,anna,digits,,,,}}": 1}


def test_job_map_names_jobs_by_index_and_by_mig_instance(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("42\n\n")
    (tmp_path / "1").write_text("43\n")
    (tmp_path / MIG).write_text("1234.pbs\n")
    (tmp_path / "notes").write_text("44\n")

    values = read(places=JobPlaces(job_map=tmp_path))

    assert values == {
        "gpu_job_source_success{job_map}": 1,
        f"gpu_job_info{{{DEVICE},,42,,,,,,}}": 1,
        f"gpu_job_info{{{DEVICE},1234.pbs,,,,,,,}}": 1,
    }


def test_job_map_joins_what_the_processes_of_the_job_say(tmp_path: Path) -> None:
    (tmp_path / "map").mkdir()
    (tmp_path / "map" / "0").write_text("42\n")
    process(tmp_path, 300, "/system.slice/slurmstepd.scope/job_42")

    values = read([300], tmp_path, JobPlaces(job_map=tmp_path / "map"))

    assert values[f"gpu_job_info{{{DEVICE},,42,anna,,,,,}}"] == 1
    assert len(values) == 2


def test_bad_files_of_a_job_map_are_told_and_harm_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "1")
    (tmp_path / "secret").write_text("99\n")
    (tmp_path / "2").symlink_to(tmp_path / "secret")
    (tmp_path / "3").write_text("x" * 5000)
    (tmp_path / "4").write_text("4 2; rm\n")
    (tmp_path / "0").write_text("42\n")

    jobs, problem = job_map.read_job_map(tmp_path)
    values = read(places=JobPlaces(job_map=tmp_path))

    assert jobs == {"0": (GpuJob(slurm_job="42"),)}
    assert "4: not a job id: '4 2; rm'" in problem
    assert values["gpu_job_source_success{job_map}"] == 0
    assert [vars(record)["reason"] for record in caplog.records] == [problem]
    assert values[f"gpu_job_info{{{DEVICE},,42,,,,,,}}"] == 1


@pytest.mark.parametrize("devices", [["GPU-a"], {"-1": ["GPU-a"]}, {"0": ["GPU-a::3"]}, [MIG]])
def test_running_pod_is_named_by_kubelets_checkpoint(tmp_path: Path, devices: object) -> None:
    (tmp_path / "checkpoint").write_bytes(checkpoint(devices))
    (tmp_path / "cgroup" / SYSTEMD_POD).mkdir(parents=True)
    (tmp_path / "pods" / f"ml_train-0_{POD}").mkdir(parents=True)
    process(tmp_path, 300, f"/{SYSTEMD_POD}/cri-containerd-0a1b.scope", uid=0)
    places = JobPlaces(None, tmp_path / "checkpoint", tmp_path / "pods", tmp_path / "cgroup")

    values = read([300], tmp_path, places)

    assert values == {
        "gpu_job_source_success{kubelet}": 1,
        f"gpu_job_info{{{DEVICE},,,,,train-0,ml,train,{POD}}}": 1,
    }


def test_pod_that_has_ended_is_not_named_though_kubelet_still_lists_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(checkpoint({"-1": ["GPU-a"]}))
    (tmp_path / "cgroup").mkdir()

    values = read(places=JobPlaces(None, tmp_path / "checkpoint", None, tmp_path / "cgroup"))

    assert values == {"gpu_job_source_success{kubelet}": 1}


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"Data": 3}', b"\xff", checkpoint(5), checkpoint([], "../x")]
)
def test_what_is_no_checkpoint_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(data)

    with pytest.raises(SourceError):
        kubelet.parse(data)
    values = read(places=JobPlaces(None, tmp_path / "checkpoint", None, tmp_path))
    assert values == {"gpu_job_source_success{kubelet}": 0}


def test_two_jobs_of_one_allocation_stay_two(tmp_path: Path) -> None:
    one, two = GpuJob(job_id="a", slurm_job="42"), GpuJob(job_id="b", slurm_job="42")

    assert merge([GpuJob(slurm_job="42", user="anna"), one, two]) == (
        replace(one, user="anna"),
        two,
    )


def test_jobs_of_a_gpu_are_bounded() -> None:
    assert len(merge(GpuJob(slurm_job=str(n)) for n in range(1, 1000))) == JOBS_OF_GPU_MAX


def test_places_that_are_not_there_say_nothing(tmp_path: Path) -> None:
    nothing = tmp_path / "none"

    assert read(places=JobPlaces(nothing, nothing, nothing, nothing)) == {}


@pytest.mark.parametrize(
    "view",
    [
        replace(VIEW, state=MonitorState.ABSENT, count=None),
        replace(VIEW, count=0),
        replace(VIEW, released_s=3.0),
    ],
)
def test_without_gpus_to_ask_the_collector_is_absent(view: MonitorView) -> None:
    with pytest.raises(NoSourceError):
        read(view=view)


def test_user_without_a_name_here_is_shown_by_number() -> None:
    assert user_name(0) == pwd.getpwuid(0).pw_name
    assert user_name(4_000_000_000) == "4000000000"
