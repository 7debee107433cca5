"""What InfiniBand and RoCE need. Pure.

Sources: Linux Documentation/ABI/stable/sysfs-class-infiniband (port states), libibverbs (a verbs device file for each
device; registered memory counts against RLIMIT_MEMLOCK), ibv_reg_mr(3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detectors.doctor.check import (
    HostCheck,
    HostPart,
    HostVerdict,
    broken,
    lacking,
    not_applicable,
    ok,
)
from detectors.wording import counted, names_in_words

ACTIVE: Final = 4
INIT: Final = 2
_MIB: Final = 1 << 20
_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class RdmaPort:
    name: str
    state_id: int


@dataclass(frozen=True, slots=True)
class RdmaFacts:
    cards: int  # InfiniBand controllers on the PCI bus
    devices: int
    ports: Sequence[RdmaPort] = ()
    error: str = ""  # why the ports could not be read
    has_verbs_files: bool | None = None  # /dev/infiniband/uverbs*; None: not looked for
    memlock_bytes: int | None = None  # soft limit; None: unlimited
    memlock_max_bytes: int | None = None  # hard limit
    is_limit_known: bool = True


def _driver(facts: RdmaFacts) -> HostVerdict:
    if facts.error:
        return broken(facts.error, "ibstat; dmesg | grep mlx5")
    if facts.devices:
        return ok(f"{facts.devices} RDMA devices")
    if facts.cards == 0:
        return not_applicable("no InfiniBand card on the PCI bus")
    return lacking(
        f"{facts.cards} InfiniBand cards, no RDMA device",
        "modprobe -a mlx5_ib ib_uverbs  # or install rdma-core or DOCA-OFED",
    )


def _ports(facts: RdmaFacts) -> HostVerdict:
    if not facts.ports:
        return not_applicable("no RDMA port")
    active = [port for port in facts.ports if port.state_id == ACTIVE]
    waiting = [port.name for port in facts.ports if port.state_id == INIT]
    if waiting:
        return broken(
            f"{_names(waiting)}: link is up, the subnet manager has not set it up",
            "systemctl enable --now opensm  # on one host of the fabric",
        )
    if not active:
        return broken("no RDMA port is active", "ibstat  # and check cables and the switch")
    down = [port.name for port in facts.ports if port.state_id != ACTIVE]
    if down:
        return lacking(
            f"{len(active)} of {counted(len(facts.ports), 'port')} {'is' if len(active) == 1 else 'are'} active; not {_names(down)}",
            "ibstat  # what is not meant to be used: [nic] exclude in agent.toml",
        )
    return ok(f"{counted(len(active), 'port')} {'is' if len(active) == 1 else 'are'} active")


def _verbs(facts: RdmaFacts) -> HostVerdict:
    if not facts.devices or facts.has_verbs_files is None:
        return not_applicable("no RDMA device")
    if facts.has_verbs_files:
        return ok("/dev/infiniband is there")
    return lacking(
        "no /dev/infiniband/uverbs* here",
        "modprobe ib_uverbs  # a container: start it with --device=/dev/infiniband",
    )


def _memlock(facts: RdmaFacts) -> HostVerdict:
    if not facts.devices or not facts.is_limit_known:
        return not_applicable("no RDMA device")
    if facts.memlock_bytes is None:
        return ok("unlimited")
    found = f"{facts.memlock_bytes // _MIB} MiB of locked memory at most"
    if facts.memlock_max_bytes is None:
        return lacking(found, "ulimit -l unlimited")
    return lacking(
        found,
        "echo '* - memlock unlimited' >> /etc/security/limits.d/rdma.conf  # slurmd: LimitMEMLOCK=infinity; a container: --ulimit memlock=-1",
    )


def _names(names: Sequence[str]) -> str:
    return names_in_words(names, _SHOWN)


_P: Final = HostPart.RDMA
RDMA_CHECKS: Final[tuple[HostCheck[RdmaFacts], ...]] = (
    HostCheck(
        "rdma_driver", _P, "RDMA driver", "the fast network: NCCL falls back to TCP", _driver
    ),
    HostCheck("rdma_ports", _P, "RDMA ports", "the fast network on these ports", _ports),
    HostCheck("rdma_files", _P, "verbs device files", "RDMA in this container or job", _verbs),
    HostCheck(
        "rdma_memlock", _P, "locked memory", "RDMA: NCCL can't register its buffers", _memlock
    ),
)
