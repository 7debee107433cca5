"""Which pod has which GPU, by the kubelet's pod-resources API: gRPC on a socket of the node that needs no right in Kubernetes.

Source: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, service v1.PodResourcesLister (stable since Kubernetes 1.28).

The API names pods and not their UIDs; these come from the folders /var/log/pods/<namespace>_<name>_<UID>. What is found is kept in a
file of the form of the kubelet's own checkpoint of devices, which the agent reads (`agent.jobs.kubelet`, `[gpu] kubelet_checkpoint`).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.jobs.kubelet import ENTRIES_MAX, read_pod_names
from rankmend.errors import SourceError

SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LIST: Final = "/v1.PodResourcesLister/List"
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024  # the kubelet's own limit
TIMEOUT_S: Final = 5.0
_PREFIXES: Final = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True)
class PodDevices:
    """The GPUs of one container."""

    namespace: str
    pod: str
    container: str
    devices: tuple[str, ...]


@lru_cache(maxsize=1)
def message_types() -> tuple[Any, Any]:
    """Return the classes of the request and of the answer, with the fields of them that are read."""
    from google.protobuf import (  # noqa: PLC0415 - only this process has it
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(
        name="rankmend/pod_resources.proto", package="v1", syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, str, bool]) -> None:
        made = file.message_type.add(name=name)
        for label, number, kind, is_list in fields:
            reported = made.field.add(
                name=label,
                number=number,
                label=field.LABEL_REPEATED if is_list else field.LABEL_OPTIONAL,
            )
            if kind == "string":
                reported.type = field.TYPE_STRING
            else:
                reported.type, reported.type_name = field.TYPE_MESSAGE, f".v1.{kind}"

    message("ListPodResourcesRequest")
    message("ListPodResourcesResponse", ("pod_resources", 1, "PodResources", True))
    message(
        "PodResources",
        ("name", 1, "string", False),
        ("namespace", 2, "string", False),
        ("containers", 3, "ContainerResources", True),
    )
    message(
        "ContainerResources",
        ("name", 1, "string", False),
        ("devices", 2, "ContainerDevices", True),
    )
    message(
        "ContainerDevices",
        ("resource_name", 1, "string", False),
        ("device_ids", 2, "string", True),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("v1.ListPodResourcesRequest", "v1.ListPodResourcesResponse")
    request, answer = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names
    )
    return request, answer


def list_pods(socket: Path, timeout_s: float = TIMEOUT_S) -> tuple[PodDevices, ...]:
    """Return the containers that have GPUs, or raise SourceError."""
    import grpc  # noqa: PLC0415 - only this process has it

    request, answer = message_types()
    options = [("grpc.max_receive_message_length", ANSWER_BYTES_MAX)]
    try:
        with grpc.insecure_channel(f"unix://{socket.absolute()}", options=options) as channel:
            call = channel.unary_unary(
                LIST,
                request_serializer=request.SerializeToString,
                response_deserializer=answer.FromString,
            )
            reported = call(request(), timeout=timeout_s)
    except grpc.RpcError as error:
        code, details = error.code(), error.details()
        raise SourceError(
            f"kubelet's pod resources at {socket}: {code.name.lower()}: {str(details)[:200]}"
        ) from error
    return tuple(_devices_of(reported))


def _devices_of(reported: Any) -> list[PodDevices]:
    found = []
    for pod in reported.pod_resources:
        for container in pod.containers:
            devices = tuple(
                device
                for item in container.devices
                for device in item.device_ids
                if device.startswith(_PREFIXES)
            )
            if devices:
                found.append(PodDevices(pod.namespace, pod.name, container.name, devices))
    return found[:ENTRIES_MAX]


def checkpoint_of(pods: Sequence[PodDevices], names: Mapping[str, tuple[str, str]]) -> bytes:
    """Return the kubelet's form of the devices of pods; ``names``: namespace and name by UID. A pod without a UID is left out."""
    uids = {name: uid for uid, name in names.items()}
    entries = [
        {
            "PodUID": uids[pod.namespace, pod.pod],
            "ContainerName": pod.container,
            "DeviceIDs": list(pod.devices),
        }
        for pod in pods
        if (pod.namespace, pod.pod) in uids
    ]
    return msgspec.json.encode({"Data": {"PodDeviceEntries": entries}})


def keep_pods(socket: Path, pod_logs: Path, path: Path) -> None:
    """Write which pod has which GPU now, for the agent to read. Raises SourceError."""
    data = checkpoint_of(list_pods(socket), read_pod_names(pod_logs))
    draft = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        draft.replace(path)
    except OSError as error:
        raise SourceError(f"cannot write {path}: {error.strerror}") from error
