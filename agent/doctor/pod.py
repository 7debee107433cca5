"""Reads what `detectors/doctor/kubernetes.py` judges, from inside a container of deploy/kubernetes.

Sources: proc(5), mountinfo; a token is a JWT (RFC 7519), whose claim ``exp`` is read and not trusted; SelfSubjectAccessReview
(authorization.k8s.io/v1), which every account may ask.
"""

import base64
import json
import os
import time
from pathlib import Path
from typing import Any, Final

from agent.doctor.pci import count_gpus
from agent.doctor.places import Places, has_own_pids
from agent.kubernetes.pod_resources import SOCKET, list_pods
from detectors.doctor.kubernetes import RIGHTS, ApiAnswer, InPodFacts, PodPart, Right, VolumeFact
from rankmend.errors import ConfigError, ManagerDeniedError, ManagerError, SourceError
from rankmend.kubernetes_api import TOKEN_FILE, KubernetesApi, KubernetesLoginError, connect
from rankmend.packages import Extra, require

PART: Final = "RANKMEND_POD_PART"  # set by the manifests
ANSWER_S_MAX: Final = 3.0
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_KUBEPODS: Final = ("kubepods", "kubepods.slice")
_TREES: Final = ("", "unified", "systemd", "memory")
_NAME_MAX: Final = 63
_OWN_LAYER: Final = frozenset({"overlay", "aufs", "rootfs"})
_EMPTY_DIR: Final = "kubernetes.io~empty-dir"


def find_part(places: Places) -> PodPart | None:
    """Return which container of deploy/kubernetes this is."""
    if not places.is_live:
        return None
    named = places.environment.get(PART, "")
    return next((part for part in PodPart if part.value == named), None)


def read_pod(
    places: Places,
    pods_file: Path | None,
    state_dir: Path | None,
    kubernetes: tuple[str | None, str | None] | None,
    *,
    answer_s: float = ANSWER_S_MAX,
) -> InPodFacts:
    """``pods_file``: of the agent's configuration. ``state_dir`` and ``kubernetes``, kubeconfig and context: of the controller's."""
    part = find_part(places)
    if part is None:
        return InPodFacts(None)
    facts: dict[str, Any] = {
        "part": part,
        "namespace": _namespace(places),
        "is_root": os.geteuid() == 0,
    }
    if part is PodPart.AGENT:
        facts |= _agents(places, pods_file)
    if part is PodPart.TELLER:
        facts |= {
            "has_pod_logs": _is_read(places.at("var/log/pods")),
            "kubelet_error": _kubelet(places),
        }
    if part is PodPart.CONTROLLER and state_dir is not None:
        facts["volume"] = _volume(places, state_dir)
    given = (None, None) if part is PodPart.TELLER else kubernetes
    if part is PodPart.AGENT or given is None:
        return InPodFacts(**facts)
    return InPodFacts(**facts, **_token(places), **_api(part, given, answer_s))


def _namespace(places: Places) -> str:
    try:
        text = places.at(str(TOKEN_FILE.with_name("namespace"))).read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return "rankmend"
    return text.strip()[:_NAME_MAX] or "rankmend"


def _agents(places: Places, pods_file: Path | None) -> dict[str, Any]:
    network = places.sysfs / "class" / "net"
    groups = places.sysfs / "fs" / "cgroup"
    return {
        "has_host_pids": not has_own_pids(places),
        # Interfaces of a pod are virtual; one with a device is the node's.
        "has_host_network": any(network.glob("*/device")),
        "has_socket_folder": _mount_of(places, places.at("run/rankmend"))[0] == "/run/rankmend",
        "has_pod_logs": _is_read(places.at("var/log/pods")),
        "has_pods_in_cgroups": any(
            (groups / tree / name).is_dir() for tree in _TREES for name in _KUBEPODS
        ),
        "pods_file": "" if pods_file is None else str(pods_file),
        "pods_file_age_s": None if pods_file is None else _age_s(pods_file),
        "gpus": count_gpus(places.sysfs),
        "has_gpu_files": places.at("dev/nvidiactl").exists(),
    }


def _age_s(path: Path) -> float | None:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return None


def _is_read(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK) and folder.is_dir()


def _kubelet(places: Places) -> str | None:
    socket = places.at(str(SOCKET))
    if not socket.exists():
        return ""
    try:
        require(Extra.KUBERNETES, "rankmend agent-kubernetes")
        list_pods(socket, ANSWER_S_MAX)
    except (ConfigError, SourceError) as error:
        return str(error)
    return None


def _token(places: Places) -> dict[str, Any]:
    try:
        text = places.at(str(TOKEN_FILE)).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return {"has_token": False}
    return {"has_token": bool(text), "token_left_s": token_left_s(text, time.time())}


def token_left_s(token: str, unix_s: float) -> float | None:
    """Return for how long a token is good; None: it does not say."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        reported = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(reported["exp"]) - unix_s
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _api(part: PodPart, given: tuple[str | None, str | None], answer_s: float) -> dict[str, Any]:
    requested = {"needs_api": True, "is_by_file": given[0] is not None}
    try:
        require(Extra.KUBERNETES, "rankmend doctor kubernetes")
        api = connect(*given, answer_s)
    except ConfigError as error:
        return {**requested, "api": ApiAnswer.NOT_ASKED, "api_text": str(error)}
    try:
        missing = tuple(item for item in RIGHTS[part] if not _may(api, item))
    except (ManagerDeniedError, KubernetesLoginError) as error:
        return {**requested, "api": ApiAnswer.DENIED, "api_text": str(error)}
    except ManagerError as error:
        return {**requested, "api": ApiAnswer.AWAY, "api_text": str(error)}
    return {**requested, "api": ApiAnswer.ANSWERS, "missing": missing}


def _may(api: KubernetesApi, right: Right) -> bool:
    resource, _slash, subresource = right.resource.partition("/")
    about = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": right.namespace,
    }
    reported = api.call("POST", _REVIEWS, body={"spec": {"resourceAttributes": about}})
    return bool((reported.get("status") or {}).get("allowed"))


def _volume(places: Places, state_dir: Path) -> VolumeFact:
    point, root, kind = _mount_of(places, state_dir)
    is_volume = kind not in _OWN_LAYER and point != "/"
    return VolumeFact(str(state_dir), is_volume, _EMPTY_DIR in root)


def _mount_of(places: Places, path: Path) -> tuple[str, str, str]:
    """Return mount point, root in its file system, and type of the mount on which a path lies."""
    found = ("/", "", "")
    try:
        text = (places.procfs / "self" / "mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return found
    target = Path("/") / path.relative_to(places.root) if places.root in path.parents else path
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = fields[4].replace("\\040", " ")
        is_above = Path(point) == target or Path(point) in target.parents
        if is_above and len(point) >= len(found[0]):  # a later one lies on top
            found = (point, fields[3], after.split(" ")[0])
    return found
