"""The faults that `rankmend inject` can make: what each is, what it needs and what it leaves. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

_HOOK: Final = "a Python rank of a job that allows drills"
_ROOT: Final = "root"
_FUSE: Final = "root, FUSE, pip install mfusepy"


class TargetKind(Enum):
    """What a fault can be made on."""

    RANK = "rank"  # a rank of a job: rank:JOB/RANK, pid:PID
    NODE = "node"
    PATH = "path"
    INTERFACE = "interface"
    SERVICE = "service"  # a program of rankmend, or one that it needs
    GPU = "gpu"


class FaultGroup(Enum):
    """Kinds of faults, as the file of marks allows them."""

    PROCESS = "process"
    CPU = "cpu"
    NETWORK = "network"
    STORAGE = "storage"
    GPU = "gpu"
    KERNEL_LOG = "kernel-log"
    RANKMEND = "rankmend"


class FaultKind(Enum):
    KILL = "kill"
    STOP = "stop"
    EXIT_CODE = "exit-code"
    EXCEPTION = "exception"
    MEMORY_LEAK = "memory-leak"
    GRANDCHILD = "grandchild"
    CPU_QUOTA = "cpu-quota"
    CORE_LOAD = "core-load"
    LINK_DOWN = "link-down"
    LOSS = "loss"
    BANDWIDTH = "bandwidth"
    PARTITION = "partition"
    DELAY = "delay"
    DISK_FULL = "disk-full"
    READ_ONLY = "read-only"
    IO_ERROR = "io-error"
    IO_HANG = "io-hang"
    FILE_LIMIT = "file-limit"
    TORN_CHECKPOINT = "torn-checkpoint"
    BIT_FLIP = "bit-flip"
    GPU_CLOCKS = "gpu-clocks"
    GPU_POWER = "gpu-power"
    GPU_STUB = "gpu-stub"
    XID = "xid"
    SXID = "sxid"
    SERVICE_KILL = "service-kill"
    SERVICE_STOP = "service-stop"
    JOURNAL_FULL = "journal-full"


@dataclass(frozen=True, slots=True)
class FaultFacts:
    """What people are notified of a fault, and what the decision about it rests on."""

    group: FaultGroup
    targets: tuple[TargetKind, ...]
    summary: str
    needs: str  # beside the mark of the job or the node
    asks_twice: bool = False
    left: str = "nothing"  # once it has been undone


_RANK: Final = (TargetKind.RANK,)
_CARD: Final = (TargetKind.INTERFACE,)
_PATH: Final = (TargetKind.PATH,)

FACTS: Final = {
    FaultKind.KILL: FaultFacts(FaultGroup.PROCESS, _RANK, "kill a rank (SIGKILL)", "its user"),
    FaultKind.STOP: FaultFacts(FaultGroup.PROCESS, _RANK, "stop a rank (SIGSTOP)", "its user"),
    FaultKind.EXIT_CODE: FaultFacts(
        FaultGroup.PROCESS, _RANK, "have a rank exit with --code", _HOOK
    ),
    FaultKind.EXCEPTION: FaultFacts(
        FaultGroup.PROCESS, _RANK, "raise an exception in a rank's main thread", _HOOK
    ),
    FaultKind.MEMORY_LEAK: FaultFacts(
        FaultGroup.PROCESS, _RANK, "leak --rate bytes/s in a rank until it is killed", _HOOK
    ),
    FaultKind.GRANDCHILD: FaultFacts(
        FaultGroup.PROCESS, _RANK, "have a rank leave a process that outlives it", _HOOK
    ),
    FaultKind.CPU_QUOTA: FaultFacts(
        FaultGroup.CPU, _RANK, "give a rank only a --share of one core", "root, the cpu cgroup"
    ),
    FaultKind.CORE_LOAD: FaultFacts(
        FaultGroup.CPU, (TargetKind.RANK, TargetKind.NODE),
        "put --workers busy processes on a rank's cores, or a node's", "its user",
    ),
    FaultKind.LINK_DOWN: FaultFacts(FaultGroup.NETWORK, _CARD, "take an interface down", "root, ip"),
    FaultKind.LOSS: FaultFacts(
        FaultGroup.NETWORK, _CARD, "lose a --share of the packets, both ways", "root, nft"
    ),
    FaultKind.BANDWIDTH: FaultFacts(
        FaultGroup.NETWORK, _CARD, "let --rate bytes/s through, each way", "root, nft"
    ),
    FaultKind.PARTITION: FaultFacts(
        FaultGroup.NETWORK, (TargetKind.INTERFACE, TargetKind.NODE),
        "lose all packets from and to each --peer", "root, nft",
    ),
    FaultKind.DELAY: FaultFacts(
        FaultGroup.NETWORK, _CARD, "hold what is sent for --delay",
        "root, nft; tc with netem, else /dev/net/tun",
    ),
    FaultKind.DISK_FULL: FaultFacts(
        FaultGroup.STORAGE, _PATH, "leave no byte free", "root; FUSE where the disk is large"
    ),
    FaultKind.READ_ONLY: FaultFacts(FaultGroup.STORAGE, _PATH, "make a folder read-only", _ROOT),
    FaultKind.IO_ERROR: FaultFacts(FaultGroup.STORAGE, _PATH, "answer every call with EIO", _FUSE),
    FaultKind.IO_HANG: FaultFacts(FaultGroup.STORAGE, _PATH, "answer no call", _FUSE),
    FaultKind.FILE_LIMIT: FaultFacts(
        FaultGroup.STORAGE, _RANK, "let a rank's files grow no further (EFBIG)", "its user"
    ),
    FaultKind.TORN_CHECKPOINT: FaultFacts(
        FaultGroup.STORAGE, _PATH, "cut a file of a checkpoint short", "room for a copy"
    ),
    FaultKind.BIT_FLIP: FaultFacts(
        FaultGroup.STORAGE, _PATH, "flip a bit in a file of a checkpoint", "room for a copy"
    ),
    FaultKind.GPU_CLOCKS: FaultFacts(
        FaultGroup.GPU, (TargetKind.GPU,), "lock a GPU's clock to --mhz (unproved)",
        "root, NVML", asks_twice=True,
    ),
    FaultKind.GPU_POWER: FaultFacts(
        FaultGroup.GPU, (TargetKind.GPU,), "limit a GPU's power to --watts (unproved)",
        "root, NVML", asks_twice=True,
    ),
    FaultKind.GPU_STUB: FaultFacts(
        FaultGroup.GPU, _PATH, "change an --answer of the stand-in for NVML", "its state file"
    ),
    FaultKind.XID: FaultFacts(
        FaultGroup.KERNEL_LOG, (TargetKind.NODE,), "report an XID of a --device to the agent",
        "root, an agent with injected_kernel_log; --kmsg: asked twice",
        left="nothing; with --kmsg the line stays in the kernel's log",
    ),
    FaultKind.SXID: FaultFacts(
        FaultGroup.KERNEL_LOG, (TargetKind.NODE,), "report an SXID of a --device to the agent",
        "root, an agent with injected_kernel_log; --kmsg: asked twice",
        left="nothing; with --kmsg the line stays in the kernel's log",
    ),
    FaultKind.SERVICE_KILL: FaultFacts(
        FaultGroup.RANKMEND, (TargetKind.SERVICE,), "kill a service (SIGKILL)",
        "root, systemd keeps it; a launcher: its user",
        left="nothing; a killed launcher's job continues with the same command",
    ),
    FaultKind.SERVICE_STOP: FaultFacts(
        FaultGroup.RANKMEND, (TargetKind.SERVICE,), "stop a service (SIGSTOP): it is gone, but not dead",
        "root; a launcher: its user",
    ),
    FaultKind.JOURNAL_FULL: FaultFacts(
        FaultGroup.RANKMEND, (TargetKind.SERVICE,), "let a service write no byte more to its files (EFBIG)",
        "root; a launcher: its user",
    ),
}  # fmt: skip
