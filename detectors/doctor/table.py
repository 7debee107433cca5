"""All checks, in the order in which they are shown. Pure. `make docs` writes them into docs/reference/doctor.md."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from detectors.doctor.agent import AGENT_CHECKS
from detectors.doctor.check import HostCheck
from detectors.doctor.controller import CERTIFICATE_CHECKS, CONTROLLER_CHECKS
from detectors.doctor.gpu import GPU_CHECKS
from detectors.doctor.host import HOST_CHECKS
from detectors.doctor.kubernetes import KUBERNETES_CHECKS
from detectors.doctor.limits import LIMIT_CHECKS
from detectors.doctor.python import PYTHON_CHECKS
from detectors.doctor.rdma import RDMA_CHECKS
from detectors.doctor.slurm import SLURM_CHECKS
from detectors.doctor.storage import STORAGE_CHECKS


class FactGroup(Enum):
    """Checks whose facts are read together: what hangs in one group costs no other."""

    GPU = "gpu"
    RDMA = "rdma"
    HOST = "host"
    LIMITS = "limits"
    SLURM = "slurm"
    AGENT = "agent"
    CONTROLLER = "controller"
    CERTIFICATES = "certificates"
    STORAGE = "storage"
    PYTHON = "python"
    KUBERNETES = "kubernetes"


CHECKS: Final[Mapping[FactGroup, Sequence[HostCheck[Any]]]] = {
    FactGroup.GPU: GPU_CHECKS,
    FactGroup.RDMA: RDMA_CHECKS,
    FactGroup.HOST: HOST_CHECKS,
    FactGroup.LIMITS: LIMIT_CHECKS,
    FactGroup.SLURM: SLURM_CHECKS,
    FactGroup.AGENT: AGENT_CHECKS,
    FactGroup.CONTROLLER: CONTROLLER_CHECKS,
    FactGroup.CERTIFICATES: CERTIFICATE_CHECKS,
    FactGroup.STORAGE: STORAGE_CHECKS,
    FactGroup.PYTHON: PYTHON_CHECKS,
    FactGroup.KUBERNETES: KUBERNETES_CHECKS,
}
_NAMES: Final = [check.name for checks in CHECKS.values() for check in checks]
assert len(_NAMES) == len(set(_NAMES)), "two checks have one name"
