"""Which pod has which GPU, from a kubelet's socket with real gRPC and protobuf to the series of the agent's source."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from agent.jobs import kubelet
from agent.jobs.gpu_job import GpuJob
from agent.kubernetes.pod_resources import LIST, checkpoint_of, keep_pods, list_pods
from rankmend.errors import SourceError

pytestmark = pytest.mark.process

UID = "0b6f1c1e-6f0e-4c62-9a52-6a9a5a1f3a11"
GPU = "GPU-5f3c1c9a-7b1e-4a55-9f10-0c1d7e0a2b64"


def kubelets_answer() -> Any:
    """Return the answer's class as the kubelet has it, with more fields than we read."""
    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package="v1", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    fields = {
        "ListPodResourcesResponse": [("pod_resources", 1, "PodResources")],
        "PodResources": [("name", 1, ""), ("namespace", 2, ""), ("containers", 3, "ContainerResources")],
        "ContainerResources": [("name", 1, ""), ("devices", 2, "ContainerDevices"), ("cpu_ids", 3, "int")],
        "ContainerDevices": [("resource_name", 1, ""), ("device_ids", 2, "list"), ("topology", 3, "TopologyInfo")],
        "TopologyInfo": [("nodes", 1, "NUMANode")],
        "NUMANode": [("ID", 1, "number")],
    }  # fmt: skip
    for name, told in fields.items():
        made = file.message_type.add(name=name)
        for label, number, kind in told:
            one = made.field.add(name=label, number=number, label=field.LABEL_OPTIONAL)
            if kind in ("", "list"):
                one.type = field.TYPE_STRING
            elif kind in ("int", "number"):
                one.type = field.TYPE_INT64
            else:
                one.type, one.type_name = field.TYPE_MESSAGE, f".v1.{kind}"
            if kind in ("list", "int") or (kind and kind[0].isupper() and kind != "TopologyInfo"):
                one.label = field.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("v1.ListPodResourcesResponse")
    return message_factory.GetMessageClass(found)


def pod(answer: Any, name: str, *devices: str, resource: str = "nvidia.com/gpu") -> None:
    made = answer.pod_resources.add(name=name, namespace="team")
    container = made.containers.add(name="ranks", cpu_ids=[1, 2])
    told = container.devices.add(resource_name=resource, device_ids=devices)
    told.topology.nodes.add(ID=1)


Serve = Callable[[Callable[[], Any]], Path]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Return what starts a kubelet's socket that answers so, and returns its path."""
    servers: list[grpc.Server] = []

    def start(answer: Callable[[], Any]) -> Path:
        service, method = LIST.strip("/").split("/")

        def handle(_request: bytes, _context: grpc.ServicerContext) -> bytes:
            return bytes(answer().SerializeToString())

        handler = grpc.unary_unary_rpc_method_handler(handle)
        server = grpc.server(ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, {method: handler})]
        )
        path = tmp_path / f"kubelet-{len(servers)}.sock"
        server.add_insecure_port(f"unix://{path}")
        server.start()
        servers.append(server)
        return path

    yield start
    for one in servers:
        one.stop(None).wait()


def test_the_kubelets_words_become_what_the_agent_reads(serve: Serve, tmp_path: Path) -> None:
    answer = kubelets_answer()()
    pod(answer, "train-0", GPU, "MIG-1")
    pod(answer, "nic-user", "mlx5_0", resource="rdma/hca")
    pod(answer, "new-pod", "GPU-other")  # its folder of logs is not there yet
    logs, path = tmp_path / "pods", tmp_path / "devices.json"
    (logs / f"team_train-0_{UID}").mkdir(parents=True)

    keep_pods(serve(lambda: answer), logs, path)

    job = GpuJob(pod_uid=UID, container="ranks")
    assert kubelet.read_checkpoint(path) == {GPU: (job,), "MIG-1": (job,)}
    assert kubelet.read_pod_names(logs) == {UID: ("team", "train-0")}
    assert [one.name for one in tmp_path.glob("devices*")] == ["devices.json"]


def test_a_node_without_pods_is_an_empty_list(serve: Serve) -> None:
    assert list_pods(serve(kubelets_answer())) == ()
    assert kubelet.parse(checkpoint_of((), {})) == {}


def test_a_socket_that_nobody_serves_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"pod resources at .*none.sock: unavailable"):
        list_pods(tmp_path / "none.sock", 2.0)


def test_a_kubelet_that_fails_is_named(serve: Serve) -> None:
    def fail() -> Any:
        raise RuntimeError("too many requests")

    with pytest.raises(SourceError, match=r"pod resources at .*: unknown: .*too many requests"):
        list_pods(serve(fail))


def test_a_folder_that_is_full_or_gone_is_named(serve: Serve, tmp_path: Path) -> None:
    socket = serve(kubelets_answer())

    with pytest.raises(SourceError, match=r"cannot write .*No such file"):
        keep_pods(socket, tmp_path, tmp_path / "gone" / "devices.json")
