"""What a job's log may say went wrong: one table of kinds, each with its class, decision, blame and next step.

A kind is finer than a class: `detectors.failed.error_classes` says what classes of failures mean, and a kind says
in which words programs report one. `STOP` is decided only where the same start would fail the same way on any
machine; the last column of the table says when that is. `docs/reference/log-classes.md` is made from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from detectors.failed.said_error import FailureCause
from detectors.finding import Blame
from detectors.hang.wait_verdict import HangClass


class LogDecision(Enum):
    """Whether to start the job again."""

    RESTART = "restart"
    STOP = "stop"
    UNKNOWN = "unknown"


class LogOnlyClass(Enum):
    """The classes that only a log tells of, beside those of a failed rank and of a hang."""

    MISMATCH = "mismatch"  # of a hang's operations: a word of its own for HangClass.PROGRAM
    HUNG = "hung"  # and the log doesn't tell by whom
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    NODE_FAILED = "node_failed"
    NUMBERS = "numbers"
    NONE = "none"  # the log shows no failure


LogClass = FailureCause | HangClass | LogOnlyClass
"""The class of what happened."""


class StopRule(Enum):
    """When a kind means that another start would fail in the same way."""

    NEVER = "never"
    ALWAYS = "always, unless only some ranks or nodes had it"
    AT_START = "before the first training step, unless only some ranks had it"
    AGAIN = "if two attempts in the log ended with it"


class FactTier(IntEnum):
    """How much a fact can explain, the most first."""

    FACT = 0
    OWN = 1
    STALL = 2
    END = 3
    VICTIM = 4
    WEAK = 5


class LogKind(Enum):
    """What happened, as finely as the words tell."""

    SYNTAX_ERROR = "syntax_error"
    NAME_ERROR = "name_error"
    IMPORT_ERROR = "import_error"
    LIBRARY_MISSING = "library_missing"
    TYPE_ERROR = "type_error"
    SHAPE_MISMATCH = "shape_mismatch"
    GRAPH = "graph"
    KERNEL_BUILD = "kernel_build"
    TORCH_USAGE = "torch_usage"
    USAGE = "usage"
    CONFIGURATION = "configuration"
    DATA_FORMAT = "data_format"
    VALUE_ERROR = "value_error"
    SCRIPT_MISSING = "script_missing"
    NOT_AUTHORIZED = "not_authorized"
    CHECKPOINT_MISMATCH = "checkpoint_mismatch"
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    FILE_MISSING = "file_missing"
    PERMISSION = "permission"
    PROGRAM_ERROR = "program_error"
    EXCEPTION = "exception"
    DO_NOT_RETRY = "do_not_retry"
    DEVICE_MEMORY = "device_memory"
    DEVICE_ASSERT = "device_assert"
    NO_KERNEL_IMAGE = "no_kernel_image"
    ILLEGAL_ACCESS = "illegal_access"
    LAUNCH_FAILURE = "launch_failure"
    GPU_HARDWARE = "gpu_hardware"
    GPU_ABSENT = "gpu_absent"
    DRIVER = "driver"
    OOM_KILLED = "oom_killed"
    HOST_MEMORY = "host_memory"
    SHARED_MEMORY = "shared_memory"
    LOADER_WORKER = "loader_worker"
    KILLED = "killed"
    SEGFAULT = "segfault"
    BUS_ERROR = "bus_error"
    ABORTED = "aborted"
    CRASHED = "crashed"
    MACHINE = "machine"
    DISK_FULL = "disk_full"
    DISK_QUOTA = "disk_quota"
    STORAGE_ERROR = "storage_error"
    SERVICE_AWAY = "service_away"
    NCCL_VERSIONS = "nccl_versions"
    NCCL_USAGE = "nccl_usage"
    NCCL_SYSTEM = "nccl_system"
    LINK_ERROR = "link_error"
    PEER_LOST = "peer_lost"
    NEVER_JOINED = "never_joined"
    PORT_IN_USE = "port_in_use"
    NOT_FINITE = "not_finite"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    NODE_FAILED = "node_failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    EXIT_CODE = "exit_code"
    HANG_HOST = "hang_host"
    HANG_DEVICE = "hang_device"
    HANG_GONE = "hang_gone"
    HANG_MISMATCH = "hang_mismatch"
    HANG_DEADLOCK = "hang_deadlock"
    HANG_NETWORK = "hang_network"
    HANG = "hang"
    WATCHDOG_STUCK = "watchdog_stuck"
    NO_FAILURE = "no_failure"


@dataclass(frozen=True, slots=True)
class KindRow:
    """What one kind means."""

    log_class: LogClass
    stop: StopRule
    blame: Blame
    example: str  # as programs print it
    source: str
    next_step: str
    step_includes_restart: bool = False  # it says how to start again, or whom to ask first


_C, _S = FailureCause, StopRule
_PROGRAM, _RANK, _NOBODY, _LINK = Blame.PROGRAM, Blame.RANK, Blame.NOBODY, Blame.COMMUNICATION

KINDS: Final[Mapping[LogKind, KindRow]] = {
    LogKind.SYNTAX_ERROR: KindRow(_C.PROGRAM, _S.ALWAYS, _PROGRAM, "SyntaxError: invalid syntax", "CPython", "correct the file that the error names"),
    LogKind.NAME_ERROR: KindRow(_C.PROGRAM, _S.ALWAYS, _PROGRAM, "NameError: name 'modle' is not defined", "CPython", "correct the line that the error names"),
    LogKind.IMPORT_ERROR: KindRow(_C.EXCEPTION, _S.ALWAYS, _PROGRAM, "ModuleNotFoundError: No module named 'einops'", "CPython", "install the module in the image or environment of all nodes"),
    LogKind.LIBRARY_MISSING: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "ImportError: libcudart.so.12: cannot open shared object file", "glibc, dl-load.c", "install libraries that fit each other, or compare those of this node with a healthy one's"),
    LogKind.TYPE_ERROR: KindRow(_C.PROGRAM, _S.AT_START, _PROGRAM, "TypeError: forward() missing 1 required positional argument", "CPython", "correct the line that the error names"),
    LogKind.SHAPE_MISMATCH: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "RuntimeError: mat1 and mat2 shapes cannot be multiplied", "ATen", "compare the sizes of the model and of its input"),
    LogKind.GRAPH: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one", "torch/csrc/autograd, c10d/reducer.cpp", "correct the model's code: which parameters and tensors take part in the backward pass"),
    LogKind.KERNEL_BUILD: KindRow(_C.PROGRAM, _S.AT_START, _PROGRAM, "RuntimeError: PassManager::run failed", "Triton, torch/_inductor, CUDA graphs", "correct the kernel or graph, or install versions of compiler and driver that fit"),
    LogKind.TORCH_USAGE: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "RuntimeError: Cannot re-initialize CUDA in forked subprocess", "torch", "correct the call that the error names"),
    LogKind.USAGE: KindRow(_C.EXCEPTION, _S.ALWAYS, _PROGRAM, "train.py: error: unrecognized arguments: --lrr", "argparse, click, hydra", "correct the command line"),
    LogKind.CONFIGURATION: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "AssertionError: world size (6) is not divisible by 4", "Megatron-LM, DeepSpeed, pydantic", "correct the setting that the error names"),
    LogKind.DATA_FORMAT: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "json.decoder.JSONDecodeError: Expecting ',' delimiter", "json, pyarrow, pandas, yaml", "check the file that was read"),
    LogKind.VALUE_ERROR: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "KeyError: 'hidden_size'", "CPython", "look at the line and the value that the error names"),
    LogKind.SCRIPT_MISSING: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "python: can't open file '/w/trian.py'", "CPython, main.c", "correct the path of the script, or mount its folder"),
    LogKind.NOT_AUTHORIZED: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "GatedRepoError: 401 Client Error", "HTTP; huggingface_hub, wandb, botocore", "give the job a valid token, or access to what it asks for"),
    LogKind.CHECKPOINT_MISMATCH: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "Error(s) in loading state_dict for GPT: size mismatch for ...", "torch/nn/modules/module.py", "load a checkpoint of this model, or restore the model's settings"),
    LogKind.CHECKPOINT_DAMAGED: KindRow(_C.EXCEPTION, _S.NEVER, _NOBODY, "PytorchStreamReader failed reading zip archive", "caffe2/serialize/inline_container.cc", "restart from the checkpoint before this one", step_includes_restart=True),
    LogKind.FILE_MISSING: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", "errno ENOENT", "correct the path, or mount its folder"),
    LogKind.PERMISSION: KindRow(_C.EXCEPTION, _S.AT_START, _PROGRAM, "PermissionError: [Errno 13] Permission denied", "errno EACCES", "correct owner, mode or mount of the path"),
    LogKind.PROGRAM_ERROR: KindRow(_C.PROGRAM, _S.AT_START, _PROGRAM, "NotImplementedError", "CPython; CUDA and NCCL used wrongly", "correct the line that the error names"),
    LogKind.EXCEPTION: KindRow(_C.EXCEPTION, _S.AGAIN, _PROGRAM, "RuntimeError: ...", "CPython", "look at the traceback"),
    LogKind.DO_NOT_RETRY: KindRow(_C.DO_NOT_RETRY, _S.ALWAYS, _PROGRAM, "exitcode  : 93", "exit code 93, as NVIDIA's resiliency extension", "correct what the program reports"),
    LogKind.DEVICE_MEMORY: KindRow(_C.DEVICE_MEMORY, _S.AT_START, _PROGRAM, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "c10/cuda/CUDACachingAllocator.cpp", "lower the batch or the sequence length, or shard the model further"),
    LogKind.DEVICE_ASSERT: KindRow(_C.PROGRAM, _S.AT_START, _PROGRAM, "CUDA error: device-side assert triggered", "cudaErrorAssert", "look for an index outside its range, such as a token above the vocabulary"),
    LogKind.NO_KERNEL_IMAGE: KindRow(_C.PROGRAM, _S.AT_START, _PROGRAM, "CUDA error: no kernel image is available for execution on the device", "cudaErrorNoKernelImageForDevice", "install a build for this GPU's architecture"),
    LogKind.ILLEGAL_ACCESS: KindRow(_C.KERNEL_FAULT, _S.NEVER, _RANK, "CUDA error: an illegal memory access was encountered", "cudaErrorIllegalAddress, XID 13 and 31", "restart; if it follows the node, test the GPU, else debug the kernel", step_includes_restart=True),
    LogKind.LAUNCH_FAILURE: KindRow(_C.KERNEL_FAULT, _S.NEVER, _RANK, "CUDA error: unspecified launch failure", "CUDA runtime API", "restart; if it follows the node, test the GPU", step_includes_restart=True),
    LogKind.GPU_HARDWARE: KindRow(_C.DEVICE, _S.NEVER, _RANK, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", "NVIDIA's XID catalogue; CUDA runtime API", "restart without this node, and run: rankmend check", step_includes_restart=True),
    LogKind.GPU_ABSENT: KindRow(_C.DEVICE, _S.NEVER, _RANK, "RuntimeError: No CUDA GPUs are available", "cudaErrorNoDevice", "restart elsewhere; check CUDA_VISIBLE_DEVICES and the node's GPUs", step_includes_restart=True),
    LogKind.DRIVER: KindRow(_C.DEVICE, _S.NEVER, _RANK, "Failed to initialize NVML: Driver/library version mismatch", "NVML", "restart elsewhere; reload the driver of this node", step_includes_restart=True),
    LogKind.OOM_KILLED: KindRow(_C.OOM_KILLED, _S.NEVER, Blame.MEMORY, "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "Slurm, Linux, Kubernetes", "give the job more host memory, or fewer loader workers"),
    LogKind.HOST_MEMORY: KindRow(_C.HOST_MEMORY, _S.NEVER, Blame.MEMORY, "OSError: [Errno 12] Cannot allocate memory", "errno ENOMEM", "give the job more host memory, or fewer loader workers"),
    LogKind.SHARED_MEMORY: KindRow(_C.HOST_MEMORY, _S.NEVER, Blame.MEMORY, "Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)", "torch DataLoader.cpp", "give the container a larger /dev/shm"),
    LogKind.LOADER_WORKER: KindRow(_C.HOST_MEMORY, _S.NEVER, Blame.MEMORY, "DataLoader worker (pid 7) is killed by signal: Killed", "torch/utils/data/dataloader.py", "give the job more host memory, or fewer loader workers"),
    LogKind.KILLED: KindRow(_C.KILLED, _S.NEVER, _RANK, "exitcode  : -9 (pid: 77)", "signal(7), SIGKILL", "look for an out-of-memory kill in the node's kernel log"),
    LogKind.SEGFAULT: KindRow(_C.CRASHED, _S.NEVER, _RANK, "Fatal Python error: Segmentation fault", "signal(7), SIGSEGV", "restart; if it comes again on another node, look at the C++ stack", step_includes_restart=True),
    LogKind.BUS_ERROR: KindRow(_C.CRASHED, _S.NEVER, _RANK, "srun: error: n1: task 3: Bus error", "signal(7), SIGBUS", "look at /dev/shm and at the node's memory"),
    LogKind.ABORTED: KindRow(_C.CRASHED, _S.NEVER, _RANK, "terminate called after throwing an instance of 'std::runtime_error'", "signal(7), SIGABRT", "look at the C++ error above it"),
    LogKind.CRASHED: KindRow(_C.CRASHED, _S.NEVER, _RANK, "exitcode  : -4 (pid: 77)", "signal(7)", "look at the C++ stack; an illegal instruction can be the node's CPU"),
    LogKind.MACHINE: KindRow(LogOnlyClass.NODE_FAILED, _S.NEVER, _RANK, "mce: [Hardware Error]: Machine check", "Linux", "restart without this node, and run: rankmend check log FILE", step_includes_restart=True),
    LogKind.DISK_FULL: KindRow(_C.STORAGE, _S.NEVER, _NOBODY, "OSError: [Errno 28] No space left on device", "errno ENOSPC", "free space, then restart", step_includes_restart=True),
    LogKind.DISK_QUOTA: KindRow(_C.STORAGE, _S.NEVER, _NOBODY, "OSError: [Errno 122] Disk quota exceeded", "errno EDQUOT", "free space below the quota, then restart", step_includes_restart=True),
    LogKind.STORAGE_ERROR: KindRow(_C.STORAGE, _S.NEVER, _NOBODY, "OSError: [Errno 116] Stale file handle", "errno EIO, EROFS, ESTALE", "check the mount on this node, then restart", step_includes_restart=True),
    LogKind.SERVICE_AWAY: KindRow(_C.SERVICE, _S.NEVER, _NOBODY, "requests.exceptions.ConnectionError: HTTPSConnectionPool(...): Max retries exceeded", "HTTP and client libraries", "restart later, with a pause", step_includes_restart=True),
    LogKind.NCCL_VERSIONS: KindRow(_C.MIXED_NCCL, _S.NEVER, _PROGRAM, "NCCL WARN Mismatched NCCL version detected", "NCCL, init.cc", "give all nodes one image"),
    LogKind.NCCL_USAGE: KindRow(_C.PROGRAM, _S.AT_START, _PROGRAM, "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "NCCL, init.cc", "give each rank its own GPU: torch.cuda.set_device(LOCAL_RANK)"),
    LogKind.NCCL_SYSTEM: KindRow(_C.COMMUNICATION, _S.NEVER, _LINK, "ncclSystemError: System call (e.g. socket, malloc) or external library call failed", "NCCL", "read NCCL's own lines with NCCL_DEBUG=WARN, and run: rankmend fabric"),
    LogKind.LINK_ERROR: KindRow(_C.COMMUNICATION, _S.NEVER, _LINK, "NCCL WARN NET/IB : Got completion from peer 10.0.0.7<51234> with status=12", "NCCL, net_ib.cc; ibv_wc_status", "test the links between these nodes: rankmend fabric"),
    LogKind.PEER_LOST: KindRow(_C.COMMUNICATION, _S.NEVER, _LINK, "Connection closed by peer [10.0.0.7]:51234", "gloo, NCCL, c10d", "read the log of the rank that went first: it is not among these lines"),
    LogKind.NEVER_JOINED: KindRow(_C.COMMUNICATION, _S.NEVER, _LINK, "Timed out after 901 seconds waiting for clients. 7/8 clients joined.", "c10d, TCPStore.cpp", "find the rank that did not start, or cannot reach the store"),
    LogKind.PORT_IN_USE: KindRow(_C.COMMUNICATION, _S.NEVER, _NOBODY, "The server socket has failed to listen on any local network address. port: 29500 ... EADDRINUSE", "c10d, socket.cpp", "end what holds the port, or choose another one"),
    LogKind.NOT_FINITE: KindRow(LogOnlyClass.NUMBERS, _S.NEVER, _NOBODY, "found NaN in local forward loss calculation", "Megatron-LM, Lightning", "restart from an older checkpoint; if it comes again at that step, look at data and settings", step_includes_restart=True),
    LogKind.PREEMPTED: KindRow(LogOnlyClass.PREEMPTED, _S.NEVER, Blame.USER, "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT ... DUE TO PREEMPTION ***", "Slurm, Kubernetes", "start again when the scheduler has room", step_includes_restart=True),
    LogKind.TIME_LIMIT: KindRow(LogOnlyClass.TIME_LIMIT, _S.NEVER, Blame.USER, "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT ... DUE TO TIME LIMIT ***", "Slurm", "start again from the newest checkpoint", step_includes_restart=True),
    LogKind.NODE_FAILED: KindRow(LogOnlyClass.NODE_FAILED, _S.NEVER, _RANK, "srun: error: Node failure on n1", "Slurm", "restart without this node", step_includes_restart=True),
    LogKind.CANCELLED: KindRow(_C.USER, _S.NEVER, Blame.USER, "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT ... ***", "Slurm", "ask the person who cancelled it", step_includes_restart=True),
    LogKind.INTERRUPTED: KindRow(_C.USER, _S.NEVER, Blame.USER, "KeyboardInterrupt", "SIGINT", "ask the person who interrupted it", step_includes_restart=True),
    LogKind.TERMINATED: KindRow(_C.USER, _S.NEVER, Blame.USER, "SignalException: Process 7 got signal: 15", "SIGTERM", "ask who or what sent the signal: a person, a scheduler, a node's shutdown", step_includes_restart=True),
    LogKind.EXIT_CODE: KindRow(_C.EXIT, _S.NEVER, _PROGRAM, "exitcode  : 1 (pid: 77)", "launchers", "read this rank's own output: it isn't in this log"),
    LogKind.HANG_HOST: KindRow(HangClass.HOST_STUCK, _S.NEVER, _RANK, "To our best knowledge, the lagging ranks: [2] finished collective #4, but didn't join collective #5", "c10d, ProcessGroupNCCL.cpp", "look where this rank stands: py-spy dump --pid PID"),
    LogKind.HANG_DEVICE: KindRow(HangClass.DEVICE_STUCK, _S.NEVER, _RANK, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96117, ...) while others are at 96120", "c10d, ProcessGroupNCCL.cpp", "restart without this rank's node, and test its GPU", step_includes_restart=True),
    LogKind.HANG_GONE: KindRow(HangClass.PROCESS_GONE, _S.NEVER, _RANK, "all ranks but one report a timeout, and that one says nothing", "c10d, ProcessGroupNCCL.cpp", "look at this rank's node and its output"),
    LogKind.HANG_MISMATCH: KindRow(LogOnlyClass.MISMATCH, _S.NEVER, _PROGRAM, "Detected mismatch between collectives on ranks", "c10d, ProcessGroupWrapper.cpp", "find why ranks take different branches before this collective"),
    LogKind.HANG_DEADLOCK: KindRow(HangClass.DEADLOCK, _S.NEVER, _PROGRAM, "ranks wait for each other in different groups", "c10d, ProcessGroupNCCL.cpp", "launch collectives in one order on all ranks"),
    LogKind.HANG_NETWORK: KindRow(HangClass.NETWORK, _S.NEVER, _LINK, "all ranks have begun the same collective", "c10d, ProcessGroupNCCL.cpp", "test the fabric: rankmend fabric"),
    LogKind.HANG: KindRow(LogOnlyClass.HUNG, _S.NEVER, _NOBODY, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, ...)", "c10d, ProcessGroupNCCL.cpp", "set TORCH_FR_BUFFER_SIZE=2000 and run: rankmend diagnose hang FOLDER"),
    LogKind.WATCHDOG_STUCK: KindRow(LogOnlyClass.HUNG, _S.NEVER, _NOBODY, "ProcessGroupNCCL's watchdog got stuck for 600 seconds", "c10d, ProcessGroupNCCL.cpp", "look for a rank whose CUDA call or GIL hangs"),
    LogKind.NO_FAILURE: KindRow(LogOnlyClass.NONE, _S.NEVER, _NOBODY, "", "", "give the log that has the end of the job, or the logs of all ranks"),
}  # fmt: skip
"""The one table of kinds."""
assert set(KINDS) == set(LogKind), "each kind has a row"


def next_step(kind: LogKind, decision: LogDecision) -> str:
    """Return what a person does next. What repairs the cause comes first where a restart would fail again, else second."""
    row = KINDS[kind]
    if decision is not LogDecision.RESTART or row.step_includes_restart:
        return row.next_step
    return f"restart; if it comes again, {row.next_step}"
