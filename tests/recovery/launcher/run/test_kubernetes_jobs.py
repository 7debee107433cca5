"""examples/kubernetes: pods whose command is `rankmend run`, with the variables that each controller of jobs gives them."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rankmend.cli import cli
from rankmend.cli.run import run
from recovery.launcher.run.options import Mode, RunOptions, choose_mode, node_range, parse_meeting
from tests.support.kubernetes import Cluster

pytestmark = pytest.mark.site

FOLDER = Path(__file__).resolve().parents[4] / "examples/kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
# What each gives the container. Indexed Job: docs of batch/v1, JOB_COMPLETION_INDEX. JobSet adds its index. Trainer: its torch
# plugin (the model of TorchMLPolicySource names PET_*). PyTorchJob: training-operator 1.9, static and with an elastic policy.
VARIABLES: dict[str, dict[str, str]] = {
    "indexed_job": {"JOB_COMPLETION_INDEX": "1"},
    "jobset": {"JOB_COMPLETION_INDEX": "1"},
    "trainjob": {
        "JOB_COMPLETION_INDEX": "1",
        "PET_NNODES": "4",
        "PET_NPROC_PER_NODE": "8",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "digits-node-0-0.digits",
        "PET_MASTER_PORT": "29400",
    },
    "pytorchjob": {
        "MASTER_ADDR": "digits-worker-0",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "32",
        "RANK": "1",
        "PET_NNODES": "4",
        "PET_NPROC_PER_NODE": "8",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "digits-worker-0",
        "PET_MASTER_PORT": "23456",
    },
}


def pods(found: Any) -> Iterator[dict[str, Any]]:
    """Yield each pod's template in an object, wherever it is."""
    if isinstance(found, dict):
        if "containers" in (found.get("spec") or {}):
            yield found
        for value in found.values():
            yield from pods(value)
    elif isinstance(found, list):
        for value in found:
            yield from pods(value)


def pod_of(file: Path) -> dict[str, Any]:
    (pod,) = [pod for one in yaml.safe_load_all(file.read_text()) for pod in pods(one)]
    return pod


def parse(arguments: list[str], environment: Mapping[str, str]) -> RunOptions:
    with CliRunner(env=dict(environment)).isolation():
        params = dict(run.make_context("run", arguments).params)
    known = RunOptions.__dataclass_fields__
    return RunOptions(**{name: value for name, value in params.items() if name in known})


def test_every_example_has_its_variables() -> None:
    assert [one.stem for one in FILES] == sorted(VARIABLES)


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.stem)
def test_the_command_of_each_example_is_of_a_job_with_a_spare_at_the_controller(file: Path) -> None:
    pod = pod_of(file)
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["rankmend", "run"]

    options = parse(container["args"], VARIABLES[file.stem])

    assert choose_mode(options) is Mode.SERVICE
    assert node_range(options) == (3, 4)
    assert options.nproc_per_node in ("8", "gpu")
    assert options.node_name == "$(NODE_NAME)"
    assert {one["name"] for one in container["env"]} == {"NODE_NAME", "POD_IP"}


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.stem)
def test_the_label_is_the_name_of_the_job_and_keeps_launchers_apart(file: Path) -> None:
    pod = pod_of(file)
    (container,) = pod["spec"]["containers"]
    label = pod["metadata"]["labels"]["rankmend.io/job"]
    (apart,) = pod["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]

    assert f"--job={label}" in container["args"]
    assert apart["labelSelector"]["matchLabels"] == {"rankmend.io/job": label}
    grace_s = float(parse(container["args"], VARIABLES[file.stem]).grace_s or 0)
    assert pod["spec"]["terminationGracePeriodSeconds"] > grace_s > 0


@pytest.mark.parametrize("name", ["trainjob", "pytorchjob"])
def test_without_a_controller_the_launchers_meet_where_torchrun_would(name: str) -> None:
    options = parse(["train.py"], VARIABLES[name])

    meeting = parse_meeting(options)

    assert choose_mode(options) is Mode.MEETING
    assert meeting.host == VARIABLES[name]["PET_MASTER_ADDR"]
    assert meeting.port == int(VARIABLES[name]["PET_MASTER_PORT"])
    assert meeting.is_host is False  # that is the pod with index 0


def test_an_elastic_policys_meeting_place_is_left_for_the_controller(tmp_path: Path) -> None:
    words = shlex.split("run --controller https://127.0.0.1:1 --ca-file none train.py")

    said = CliRunner().invoke(
        cli,
        words,
        env={
            "PET_RDZV_ENDPOINT": "digits-worker-0:23456",
            "PET_NNODES": "2:4",
            "RANKMEND_STATE_DIR": str(tmp_path),
        },
    )

    assert "PET_RDZV_ENDPOINT has no meaning here and is ignored" in said.output
    assert "mutually exclusive" not in said.output


def same(given: Any, read: Any) -> bool:
    """Return whether all that a file says has been read, apart from what the model adds by itself."""
    if isinstance(given, dict):
        return isinstance(read, dict) and all(
            key in read and same(one, read[key]) for key, one in given.items()
        )
    if isinstance(given, list):
        return len(given) == len(read) and all(
            same(one, other) for one, other in zip(given, read, strict=True)
        )
    return bool(given == read)


# What the models of kubeflow-training say, recorded: that package does not go with today's client of Kubernetes.
RECORDED = json.loads(
    (FOLDER.parents[1] / "tests/fixtures/kubeflow_training/pytorchjob.json").read_text()
)["models"]
PLAIN: dict[str, type] = {"str": str, "int": int, "bool": bool}


def strays(told: Any, kind: str, outside: Mapping[str, Any], path: str = "") -> list[str]:
    """Return what a recorded model does not have; ``outside``: models of Kubernetes' own kinds, the others are taken as they are."""
    if kind in PLAIN:
        return [] if type(told) is PLAIN[kind] else [f"{path} is no {kind}: {told!r}"]
    if kind in outside:
        return [] if same(told, outside[kind].from_dict(told).to_dict()) else [path]
    if kind.startswith(("list[", "dict(str, ")):
        inner = kind.removeprefix("list[").removeprefix("dict(str, ")[:-1]
        pairs = told.items() if isinstance(told, dict) else enumerate(told)
        found = [strays(one, inner, outside, f"{path}.{key}") for key, one in pairs]
        return [name for names in found for name in names]
    if kind not in RECORDED:
        return []
    known = RECORDED[kind]
    unknown = [f"{path}.{key}" for key in told if key not in known]
    inside = [
        strays(one, known[key], outside, f"{path}.{key}")
        for key, one in told.items()
        if key in known
    ]
    return unknown + [name for names in inside for name in names]


def test_a_field_that_no_model_has_is_found() -> None:
    (told,) = yaml.safe_load_all((FOLDER / "pytorchjob.yaml").read_text())
    told["spec"]["nprocPerNode"] = 8
    told["spec"]["runPolicy"]["cleanPods"] = "None"

    assert strays(told, "KubeflowOrgV1PyTorchJob", {}) == [
        ".spec.nprocPerNode is no str: 8",
        ".spec.runPolicy.cleanPods",
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.stem)
def test_a_real_api_server_takes_the_pod_of_each_example(
    file: Path, kubernetes_cluster: Cluster
) -> None:
    pod = pod_of(file)
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": file.stem.replace("_", "-"), **pod["metadata"]},
        "spec": pod["spec"],
    }

    made = kubernetes_cluster.apply(body, "/api/v1/namespaces/default/pods", is_dry=True)

    assert same(
        {key: one for key, one in pod["spec"].items() if key != "volumes"},
        {key: made["spec"][key] for key in pod["spec"]},
    )


def test_a_real_api_server_takes_the_job_but_for_what_is_newer_than_it(
    kubernetes_cluster: Cluster,
) -> None:
    (told,) = yaml.safe_load_all((FOLDER / "indexed_job.yaml").read_text())
    newer = (
        "completionMode",
        "podFailurePolicy",
    )  # Kubernetes 1.21 and 1.26: the server of the tests is 1.20
    told["spec"] = {key: one for key, one in told["spec"].items() if key not in newer}

    made = kubernetes_cluster.apply(told, "/apis/batch/v1/namespaces/default/jobs", is_dry=True)

    assert made["spec"]["parallelism"] == 4
    assert made["spec"]["template"]["metadata"]["labels"]["rankmend.io/job"] == "digits"


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00:10:244::7", "2001:db8::1%eth0"])
def test_a_pods_address_of_either_family_is_taken(address: str) -> None:
    options = parse(["--local-addr", address, "train.py"], {})

    assert options.local_addr == address


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.stem)
def test_what_a_file_says_is_in_the_published_models(file: Path) -> None:
    """The API server of the tests is older than these kinds: nothing else of them is proved."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    kinds = {
        "Job": models.IoK8sApiBatchV1Job,
        "JobSet": models.JobsetV1alpha2JobSet,
        "TrainJob": models.TrainerV1alpha1TrainJob,
        "ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime,
    }
    for told in yaml.safe_load_all(file.read_text()):
        if told["kind"] == "PyTorchJob":
            template = models.IoK8sApiCoreV1PodTemplateSpec
            assert strays(told, "KubeflowOrgV1PyTorchJob", {"V1PodTemplateSpec": template}) == []
            continue
        read = kinds[told["kind"]].from_dict(told).to_dict()

        assert same(told, read), (told, read)
