"""What the lines of a job's log state: errors, ends of ranks, words of schedulers, the kernel, NCCL and launchers.

Each fact has a tier, which says how much it can explain:

    FACT     the kernel, the scheduler or a device says what happened
    OWN      a rank's own error
    STALL    ranks wait for each other, or a link between them breaks
    END      how a rank ended: a signal or a crash without words
    VICTIM   a rank lost a peer, or something stopped it
    WEAK     an exit code; an error of a thread or another process

Python's tracebacks are read by `detectors.failed.error_text` and classed by `detectors.failed.error_classes`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from detectors.failed.error_classes import classify
from detectors.failed.error_text import (
    ALIKE_DIGITS,
    ErrorText,
    PrintedError,
    error_line,
    find_errors,
    fingerprint,
    may_begin_error,
    read_statements,
)
from detectors.failed.said_error import FailureCause
from detectors.job_log.error_kinds import kind_of_error
from detectors.job_log.kinds import FactTier, LogKind
from detectors.job_log.lines import LogLine, SourceLines, streams_of
from detectors.kernel.event import EventKind, KernelEvent
from detectors.kernel.log import parse_line
from detectors.kernel.rules.matcher import Matcher

FACTS_MAX: Final = 20_000
_TEXT_CHARS_MAX: Final = 400
_RANKS_MAX: Final = 20_000  # of one line


class LaunchersWord(Enum):
    """What a launcher's table says of a rank's end beside its code."""

    ENDED = "ended"
    FIRST = "first"  # before all others, as the launcher observed


class LogFact(msgspec.Struct, frozen=True, gc=False):
    """One thing that the log states."""

    kind: LogKind
    tier: FactTier
    line: LogLine
    text: str
    ranks: tuple[int, ...] = ()
    node: str | None = None
    peer: str | None = None  # address or name of the other side
    print_: str = ""  # equal for equal errors
    error: ErrorText | None = None
    local_rank: int | None = None
    launchers_word: LaunchersWord | None = None  # None: no launcher's table names this end
    is_aside: bool = False  # of a thread, or of an object that was cleared away
    own_tier: FactTier | None = (
        None  # of an error that the program logged: how much it explains if it ended the rank
    )


@dataclass(slots=True)
class LogFacts:
    """All that a job's log states about its last attempt, and what is known of the job."""

    facts: list[LogFact] = field(default_factory=list)
    ended_well: LogLine | None = None  # the last line that says so
    earlier: list[LogFact] = field(default_factory=list)  # of attempts before the last one
    ranks: set[int] = field(default_factory=set)  # that said anything
    world: int | None = None
    node_of: dict[int, str] = field(default_factory=dict)
    has_progress: bool = False
    has_resumed: bool = False
    attempts: int = 1


_XIDS: Final = frozenset({48, 62, 64, 69, 74, 79, 92, 94, 95, 109, 119, 120, 121, 140, 142, 143})
_NVLINK_XIDS: Final = range(144, 151)
# Kernel events that explain the end of a job, by the rules of `detectors.kernel`.
_EVENTS: Final = {
    **dict.fromkeys(
        (EventKind.GPU_LOST, EventKind.GPU_RESET_FAILED, EventKind.GPU_MEMORY_UNCORRECTED, EventKind.FABRIC_DOWN, EventKind.GPU_HUNG),
        LogKind.GPU_HARDWARE,
    ),
    **dict.fromkeys((EventKind.MEMORY_UNCORRECTED, EventKind.MACHINE_CHECK, EventKind.PANIC, EventKind.HARD_LOCKUP, EventKind.PCIE_FATAL), LogKind.MACHINE),
    EventKind.OOM_KILL: LogKind.OOM_KILLED,
    **dict.fromkeys((EventKind.FS_READ_ONLY, EventKind.NVME_DOWN, EventKind.FS_ERROR, EventKind.NO_PATH), LogKind.STORAGE_ERROR),
    EventKind.LINK_DOWN: LogKind.LINK_ERROR,
    EventKind.DRIVER_MISMATCH: LogKind.DRIVER,
}  # fmt: skip
# A kernel's stamp is the time since its start, of eight digits at most; UCX's is Unix time, of ten.
_KERNEL_STAMP: Final = re.compile(r"\[ *\d{1,8}\.\d+\] ")
_STAMP_STARTS: Final = frozenset(" 0123456789")
_KERNEL: Final = re.compile(r"\bkernel: |NVRM: |\bOut of memory: Kill|oom-kill:")
# A host's name before the kernel's words: syslog, journalctl, dmesg -T behind pdsh or a collector.
_SYSLOG_HOST: Final = re.compile(
    r"^(?:<\d{1,3}>(?:1 )?)?(?:(?:\w{3} )?\w{3} +\d{1,2} [\d:.]{8,15} (?:\d{4} )?|\d{4}-\d\d-\d\d[T ]\S+ )?"
    r"(?:([A-Za-z][\w.-]*) kernel(?:\[\d+\]|\.\w+)?: |([A-Za-z][\w.-]*\d[\w.-]*)(?:: | \| | )(?=\[[ \d.]+\] |\[\w{3} \w{3} +\d|NVRM: ))"
)


@dataclass(frozen=True, slots=True)
class LineRule:
    """How one line states a fact. Groups: ranks, node, peer."""

    needs: tuple[str, ...]  # a line without any of these states no such fact
    pattern: re.Pattern[str]
    kind: LogKind
    tier: FactTier
    source: str


def _rule(needs: str, pattern: str, kind: LogKind, tier: FactTier, source: str) -> LineRule:
    return LineRule(tuple(needs.split("|")), re.compile(pattern), kind, tier, source)


_TASK: Final = r"srun: error: (?P<node>[^\s:]+): tasks? (?P<ranks>[\d,\[\]-]+): "
# What begins a job: without it none starts, on any machine that has the same image.
_LAUNCHER: Final = r"(?:[\w./-]{0,100}/)?(?:srun|torchrun|rankmend|python[\d.]*|deepspeed|accelerate|mpirun|mpiexec|horovodrun|composer)"
_K, _T = LogKind, FactTier
# The first rule that matches decides.
LINE_RULES: Final = (
    _rule("srun: error: ", _TASK + r"Out Of Memory", _K.OOM_KILLED, _T.FACT, "srun"),
    _rule("srun: error: ", _TASK + r"Killed", _K.KILLED, _T.END, "srun"),
    _rule("srun: error: ", _TASK + r"Segmentation fault", _K.SEGFAULT, _T.END, "srun"),
    _rule("srun: error: ", _TASK + r"Bus error", _K.BUS_ERROR, _T.END, "srun"),
    _rule("srun: error: ", _TASK + r"Aborted", _K.ABORTED, _T.WEAK, "srun"),
    _rule("srun: error: ", _TASK + r"Illegal instruction", _K.CRASHED, _T.END, "srun"),
    _rule("srun: error: ", _TASK + r"(?:Terminated|Interrupt)", _K.TERMINATED, _T.VICTIM, "srun"),
    _rule("srun: error: ", _TASK + r"Exited with exit code 93\b", _K.DO_NOT_RETRY, _T.FACT, "srun"),
    _rule("srun: error: ", _TASK + r"Exited with exit code \d+", _K.EXIT_CODE, _T.WEAK, "srun"),
    _rule("oom", r"[Dd]etected \d+ oom[-_ ]kill (?:event|handler)", _K.OOM_KILLED, _T.FACT, "slurmstepd"),
    _rule("oom|out-of-memory handler", r"Some of your processes may have been killed by the cgroup out-of-memory handler|oom[-_]kill event", _K.OOM_KILLED, _T.FACT, "slurmstepd"),
    _rule("LIMIT|limit|exceeded", r"DUE TO TIME LIMIT|walltime \d+ exceeded limit|TERM_RUNLIMIT|(?i:\bjob\b.{0,40}\bexceeded (?:its |the )?(?:hard |soft )?(?:wall ?clock|walltime|run ?time|time)\b)", _K.TIME_LIMIT, _T.FACT, "slurmstepd, PBS, Moab, SGE, LSF"),
    _rule("deadline|MaxRuntimeExceeded", r"Job was active longer than specified deadline|\bMaxRuntimeExceeded\b", _K.TIME_LIMIT, _T.FACT, "Kubernetes, SageMaker"),
    _rule("DUE TO|reempt|PREEMPT|pot ", r"DUE TO (?:PREEMPTION|JOB REQUEUE)|\bPREEMPTED\b|[Pp]reempted by|[Ss]pot (?:instance )?(?:interruption|termination|instance is being reclaimed)|TERM_PREEMPT|(?:was|is|been) preempted\b|[Pp]reempting (?:pod|job)\b", _K.PREEMPTED, _T.FACT, "slurmstepd, Kubernetes, cloud"),
    _rule("Evicted|low on resource|TaintManager|ByKubelet", r"\bReason:\s*Evicted\b|The node was low on resource|\bDeletionByTaintManager\b|TaintManagerEviction|TerminationByKubelet", _K.PREEMPTED, _T.FACT, "Kubernetes"),
    _rule("exceed", r"Pod ephemeral local storage usage exceeds the total limit|exceeded its local ephemeral storage limit|Usage of EmptyDir volume .{1,80} exceeds the limit", _K.DISK_FULL, _T.FACT, "kubelet, eviction_manager.go"),
    _rule("DUE TO NODE", r"DUE TO NODE (?:(?P<node>[\w.-]+) )?FAIL", _K.NODE_FAILED, _T.FACT, "slurmstepd"),
    _rule("Node failure", r"srun: error: Node failure on (?P<node>[\w.,\[\]-]+)", _K.NODE_FAILED, _T.FACT, "srun"),
    _rule("Task launch", r"srun: error: Task launch for \S+ failed on node (?P<node>[\w.-]+)", _K.NODE_FAILED, _T.FACT, "srun"),
    _rule("NodeLost|NodeNotReady|ode ", r"Reason:\s*NodeLost|\bNodeNotReady\b|marking node (?P<node>[\w.-]+) as (?:dead|failed)|[Nn]ode (?P<node2>[\w.-]+) (?:has failed|is down|went down|not responding)", _K.NODE_FAILED, _T.FACT, "Kubernetes, Slurm"),
    _rule("TERM_MEMLIMIT|exceeded|gone over", r"TERM_MEMLIMIT|job killed: v?mem \S+ exceeded limit|[Ee]xceeded (?:job |step )?memory limit|[Jj]ob has gone over (?:cgroup )?memory limit of", _K.OOM_KILLED, _T.FACT, "LSF, PBS, slurmstepd, HTCondor"),
    _rule("OOMKilled", r"\bOOMKilled\b", _K.OOM_KILLED, _T.FACT, "Kubernetes"),
    _rule("CANCELLED|ancelled|scancel", r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+ \*\*\*|Job \S+ (?:was )?cancelled by|[Cc]ancelled by user|\bscancel\b.*\b(?:user|uid)", _K.CANCELLED, _T.FACT, "slurmstepd"),
    _rule("deleted at request", r"Job deleted at request of", _K.CANCELLED, _T.FACT, "PBS, Torque"),
    _rule("*** STEP|Job step aborted", r"\*\*\* STEP \S+ ON \S+ CANCELLED AT|Job step aborted: Waiting", _K.CANCELLED, _T.WEAK, "slurmstepd"),
    _rule("noticed that process", r"(?:mpirun|prterun|mpiexec) noticed that process rank (?P<ranks>\d+) with PID \d+ on node (?P<node>[\w.-]+) exited on signal 9\b", _K.KILLED, _T.END, "Open MPI"),
    _rule("noticed that process", r"(?:mpirun|prterun|mpiexec) noticed that process rank (?P<ranks>\d+) with PID \d+ on node (?P<node>[\w.-]+) exited on signal 11\b", _K.SEGFAULT, _T.END, "Open MPI"),
    _rule("noticed that process", r"(?:mpirun|prterun|mpiexec) noticed that process rank (?P<ranks>\d+) with PID \d+ on node (?P<node>[\w.-]+) exited on signal 7\b", _K.BUS_ERROR, _T.END, "Open MPI"),
    _rule("noticed that process", r"(?:mpirun|prterun|mpiexec) noticed that process rank (?P<ranks>\d+) with PID \d+ on node (?P<node>[\w.-]+) exited on signal 6\b", _K.ABORTED, _T.END, "Open MPI"),
    _rule("noticed that process", r"(?:mpirun|prterun|mpiexec) noticed that process rank (?P<ranks>\d+) with PID \d+ on node (?P<node>[\w.-]+) exited on signal [48]\b", _K.CRASHED, _T.END, "Open MPI"),
    _rule("MPI_ABORT", r"MPI_ABORT was invoked on rank (?P<ranks>\d+)", _K.EXIT_CODE, _T.WEAK, "Open MPI"),
    _rule("terminated with signal", r"process (?P<ranks>\d+) terminated with signal SIGKILL", _K.KILLED, _T.END, "torch/multiprocessing/spawn.py"),
    _rule("terminated with signal", r"process (?P<ranks>\d+) terminated with signal SIGSEGV", _K.SEGFAULT, _T.END, "torch/multiprocessing/spawn.py"),
    _rule("failed", r"ranks? (?P<ranks>\d[\d, and-]*?) failed(?: first)?(?: after step \d+)?: SIGKILL", _K.KILLED, _T.END, "rankmend run"),
    _rule("failed", r"ranks? (?P<ranks>\d[\d, and-]*?) failed(?: first)?(?: after step \d+)?: SIGSEGV", _K.SEGFAULT, _T.END, "rankmend run"),
    _rule("failed", r"ranks? (?P<ranks>\d[\d, and-]*?) failed(?: first)?(?: after step \d+)?: (?:SIGKILL, by the out-of-memory|.*out-of-memory kill counted)", _K.OOM_KILLED, _T.FACT, "rankmend run"),
    _rule("-9|137|SIGKILL", r"exitcode: -9\b|return code = -9\b|exit code:? (?:-9|137)\b|exited with code 137\b|died with <Signals.SIGKILL", _K.KILLED, _T.END, "torchrun, deepspeed, docker"),
    _rule("-11|139|SIGSEGV", r"exitcode: -11\b|return code = -11\b|exit code:? (?:-11|139)\b|died with <Signals.SIGSEGV", _K.SEGFAULT, _T.END, "torchrun, deepspeed, docker"),
    _rule("-7|135|SIGBUS", r"exitcode: -7\b|return code = -7\b|exit code:? (?:-7|135)\b|died with <Signals.SIGBUS", _K.BUS_ERROR, _T.END, "torchrun, deepspeed, docker"),
    _rule("-6|134|SIGABRT", r"exitcode: -6\b|return code = -6\b|exit code:? (?:-6|134)\b|died with <Signals.SIGABRT", _K.ABORTED, _T.WEAK, "torchrun, deepspeed, docker"),
    _rule("exitcode: 93", r"exitcode: 93\b", _K.DO_NOT_RETRY, _T.FACT, "torchrun"),
    _rule("exitcode: |return code", r"exitcode: [1-9]\d*\) local_rank|return code = [1-9]\d*\b", _K.EXIT_CODE, _T.WEAK, "torchrun, deepspeed"),
    _rule("Killed", r"^(?:\S+: line \d+: *\d+ )?(?:Killed)(?: {2,}.*)?$", _K.KILLED, _T.END, "bash"),
    _rule("egmentation fault|signal 11|SIGSEGV", r"^(?:\S+: line \d+: *\d+ )?Segmentation fault(?: *\(core dumped\).*| {2,}.*)?$|Signal: Segmentation fault \(11\)|Caught signal 11\b|\*\*\* SIGSEGV ", _K.SEGFAULT, _T.END, "bash, Open MPI, UCX, glog"),
    _rule("us error|signal 7|SIGBUS", r"^(?:\S+: line \d+: *\d+ )?Bus error(?: *\(core dumped\).*| {2,}.*)?$|Signal: Bus error \(7\)|Caught signal 7\b|\*\*\* SIGBUS ", _K.BUS_ERROR, _T.END, "bash, Open MPI, UCX, glog"),
    _rule("*** SIG", r"\*\*\* SIG(?:ABRT|FPE|ILL) received by PID", _K.ABORTED, _T.WEAK, "Abseil, failure_signal_handler.cc"),
    _rule("FATAL:  ", r"^FATAL: {2,4}(?:While [\w ]{1,60}: )?could not open image \S+: ", _K.FILE_MISSING, _T.OWN, "Apptainer, Singularity"),
    _rule("Illegal instruction", r"^(?:\S+: line \d+: *\d+ )?Illegal instruction(?: *\(core dumped\).*| {2,}.*)?$", _K.CRASHED, _T.END, "bash"),
    _rule("Aborted", r"^\S+: line \d+: *\d+ Aborted(?: *\(core dumped\).*| {2,}.*)?$", _K.ABORTED, _T.END, "bash"),
    _rule("SIGTERM|signal: 15|Killing sub|signal (15)|signal 15", r"Received SIGTERM: 15|closing signal SIGTERM|Received Signals\.SIGTERM death signal|got signal: 15|Killing subprocess \d+|\*\*\* SIGTERM (?:\(@0x[0-9a-f]{1,16}\) )?received (?:by PID|at time)|caught signal \(15\)|[Rr]eceived signal 15\b", _K.TERMINATED, _T.VICTIM, "Lightning, torchrun, DeepSpeed"),
    _rule("signal: 2|SIGINT", r"got signal: 2\b|Received Signals\.SIGINT death signal|Received SIGINT\b", _K.INTERRUPTED, _T.VICTIM, "torchrun"),
    _rule("Mismatched collective", r"Mismatched collective detected", _K.HANG_MISMATCH, _T.STALL, "NCCL, init.cc"),
    _rule("waiting for remainder", r"subset of ranks and are waiting for remainder of ranks", _K.HANG, _T.STALL, "Horovod, stall_inspector.cc"),
    _rule("memory space hbm|CompileTimeHbmOom", r"CompileTimeHbmOom|Ran out of memory in memory space hbm\. Used [\d.]+G of [\d.]+G hbm", _K.DEVICE_MEMORY, _T.OWN, "XLA for TPU: its compiler can't place the program"),
    _rule("task:", r"/task:(?P<ranks>\d+) (?:has been set to ERROR|heartbeat timeout|unexpectedly tried to connect with a different incarnation)", _K.HANG_GONE, _T.END, "JAX, coordination_service.cc"),
    _rule("disconnected", r"MPI communication peer process has unexpectedly disconnected", _K.PEER_LOST, _T.VICTIM, "Open MPI, btl_tcp_frag.c"),
    _rule("shut down", r"Horovod has been shut down", _K.PEER_LOST, _T.VICTIM, "Horovod, common.h"),
    _rule("lost communication|route a message", r"(?:ORTE|PRTE) (?:has lost communication with a remote daemon|does not know how to route a message to the specified daemon)", _K.PEER_LOST, _T.VICTIM, "Open MPI"),
    _rule("error occurred in MPI_", r"An error occurred in MPI_Init", _K.NEVER_JOINED, _T.STALL, "Open MPI"),
    _rule("error occurred in MPI_", r"An error occurred in MPI_\w+", _K.PEER_LOST, _T.VICTIM, "Open MPI"),
    _rule("Process name", r"^\s*Process name: \[\[\d+,\d+\],(?P<ranks>\d+)\]", _K.EXIT_CODE, _T.WEAK, "Open MPI: the first process that exited with a code"),
    _rule("per user-direction|Per user-direction", r"(?:a non-zero exit code|non-zero status)\.? ?.*[Pp]er user-direction", _K.EXIT_CODE, _T.WEAK, "Open MPI"),
    _rule("worker died or was killed", r"A worker died or was killed while executing a task by an unexpected system error", _K.EXIT_CODE, _T.WEAK, "Ray, raylet"),
    _rule("most recent call first", r"^Thread 0x[0-9a-f]{6,16} (?:\[[^\]]{0,40}\] )?\(most recent call first\)", _K.TERMINATED, _T.WEAK, "CPython, faulthandler: a signal asked for the stacks"),
    _rule("OP_REQUIRES failed", r"OP_REQUIRES failed at \S+ : (?:INTERNAL|Internal|UNKNOWN|Unknown|ABORTED|Aborted|DATA_LOSS|Data loss|FAILED_PRECONDITION|Failed precondition): ", _K.EXCEPTION, _T.WEAK, "TensorFlow, op_kernel.cc"),
    _rule("CUDA_ERROR_", r"\b[EF] (?:external|tensorflow|xla)/.{0,300}\bCUDA_ERROR_(?:ILLEGAL_ADDRESS|MISALIGNED_ADDRESS)\b", _K.ILLEGAL_ACCESS, _T.OWN, "TensorFlow and XLA, cuda_driver.cc and cuda_event.cc"),
    _rule("CUDA_ERROR_", r"\b[EF] (?:external|tensorflow|xla)/.{0,300}\bCUDA_ERROR_(?:LAUNCH_FAILED|ILLEGAL_INSTRUCTION|HARDWARE_STACK_ERROR)\b", _K.LAUNCH_FAILURE, _T.OWN, "TensorFlow and XLA, cuda_driver.cc"),
    _rule("driver version is insuff|forward compat", r"^(?!.*[Ww]arning).{0,300}(?:CUDA driver version is insufficient for CUDA runtime version|forward compatibility was attempted on non supported HW)", _K.DRIVER, _T.OWN, "programs in C that print cudaGetErrorString()"),
    _rule("exit codes of the workers", r"The exit codes of the workers are \{[^}]{0,200}SIGKILL", _K.LOADER_WORKER, _T.OWN, "joblib, loky/process_executor.py"),
    _rule("exit codes of the workers", r"The exit codes of the workers are \{[^}]{0,200}SIGSEGV", _K.SEGFAULT, _T.OWN, "joblib, loky/process_executor.py"),
    _rule("pyxis: ", r"error: pyxis: (?:container start failed|couldn't start container|failed to (?:import docker|create container))", _K.EXIT_CODE, _T.WEAK, "Pyxis, pyxis_slurmstepd.c"),
    _rule("RESOURCE_EXHAUSTED|Resource exhausted", r"^(?!.{0,60}\bW (?:external|tensorflow|xla)/)(?!.*allocator (?:mkl)?cpu).{0,300}(?:RESOURCE_EXHAUSTED|Resource exhausted): .{0,160}(?:That was not possible|Ran out of memory in memory space|Out of memory (?:while|allocating)|OOM when allocating)", _K.DEVICE_MEMORY, _T.WEAK, "XLA and TensorFlow, in their own log"),
    _rule("HSA_STATUS_ERROR", r"aborting with error ?: HSA_STATUS_ERROR_OUT_OF_RESOURCES", _K.DEVICE_MEMORY, _T.WEAK, "ROCm, rocdevice.cpp"),
    _rule("HSA_STATUS_ERROR", r"aborting with error ?: HSA_STATUS_ERROR_(?:MEMORY_\w+|INVALID_ADDRESS)", _K.ILLEGAL_ACCESS, _T.OWN, "ROCm, rocdevice.cpp"),
    _rule("HSA_STATUS_ERROR", r"aborting with error ?: HSA_STATUS_ERROR", _K.LAUNCH_FAILURE, _T.OWN, "ROCm, rocdevice.cpp: the queue of a device stops"),
    _rule("device handle", r"Unable to determine the device handle for (?:GPU|gpu)", _K.GPU_HARDWARE, _T.OWN, "nvidia-smi: the device is lost"),
    _rule("got completion", r"\bmlx[45]: \S+: got completion with error", _K.LINK_ERROR, _T.STALL, "rdma-core, providers/mlx5/cq.c"),
    _rule("nccl", r"(?:^|[\]:>] ?)nccl(?:InternalError: Internal check failed|SystemError: System call|RemoteError: A call failed)", _K.NCCL_SYSTEM, _T.VICTIM, "NCCL, ncclGetErrorString and PyTorch's NCCLUtils.cpp"),
    _rule("CCL_ERROR|oneCCL: ", r"\|?CCL_ERROR\| |oneCCL: \S+:\d+ \w+: EXCEPTION: ", _K.EXCEPTION, _T.WEAK, "oneCCL, log.hpp"),
    _rule("nodes went down", r"Too many nodes went down and we cannot recover", _K.PEER_LOST, _T.VICTIM, "Rabit, allreduce_robust.cc"),
    _rule("has died", r"The actor (?:is dead|died) because its (?:worker process|node) has died", _K.KILLED, _T.END, "Ray, actor_death_cause"),
    _rule("been marked dead", r"node id: \w+ and (?:ip|address): (?P<node>[\w.:-]+).{0,120} has been marked dead", _K.NODE_FAILED, _T.FACT, "Ray, gcs_health_check_manager.cc"),
    _rule("memory pressure", r"Workers? \(tasks ?/ ?actors\) killed due to memory pressure \(OOM\)|Task was killed due to the node running low on memory", _K.OOM_KILLED, _T.FACT, "Ray, memory_monitor.cc"),
    _rule("Container rank", r"Container rank (?P<ranks>\d+) status failed .*code -?[1-9]\d*\b", _K.EXIT_CODE, _T.WEAK, "paddle/distributed/launch"),
    _rule("Blocking queue is killed", r"Blocking queue is killed because the data reader raises", _K.EXCEPTION, _T.WEAK, "Paddle, blocking_queue.h"),
    _rule("recvValue failed", r"\[c10d\] recvValue failed on SocketImpl.*(?:got 0 bytes|[Cc]onnection reset)", _K.PEER_LOST, _T.WEAK, "c10d, TCPStore.cpp"),
    _rule("message", r'"message": "Rendezvous\w{1,30}Error: ', _K.NEVER_JOINED, _T.STALL, "torchelastic, error_handler.py"),
    _rule("registration failed|Barrier timed out", r"cluster registration failed|Barrier timed out\. (?:Barrier_)?[Ii]d: ?\W?(?:Init|PjRT_Client_Connect)", _K.NEVER_JOINED, _T.STALL, "JAX, coordination_service.cc: tasks that never registered"),
    _rule("agent in error status", r"Coordination service agent in error status: (?:DEADLINE_EXCEEDED|UNAVAILABLE|ABORTED|CANCELLED)", _K.PEER_LOST, _T.VICTIM, "XLA, pjrt/distributed/client.cc"),
    _rule("Barrier timed out", r"Barrier timed out\. (?:Barrier_)?[Ii]d: ", _K.HANG, _T.STALL, "JAX, coordination_service.cc"),
    _rule("NCCL error in", r"^NCCL error in: \S+?:\d+, (?:unhandled|internal|remote)", _K.NCCL_SYSTEM, _T.VICTIM, "PyTorch 1.0 to 1.3, ProcessGroupNCCL.cpp: it raised without a type"),
    _rule("NCCL operation", r"NCCL operation \w+\(.*failed: invalid (?:usage|argument)", _K.NCCL_USAGE, _T.OWN, "XLA, nccl_utils.cc and nccl_errors.h"),
    _rule("NCCL operation", r"NCCL operation \w+\(.*failed: ", _K.NCCL_SYSTEM, _T.VICTIM, "XLA, nccl_utils.cc and nccl_errors.h"),
    _rule("reported to Coordinator", r"Error reported to Coordinator: .*\b(?:Unavailable|Aborted|Cancelled|DeadlineExceeded)Error\b", _K.PEER_LOST, _T.VICTIM, "TensorFlow, coordinator.py: a worker lost another one"),
    _rule("reported to Coordinator", r"Error reported to Coordinator: ", _K.EXCEPTION, _T.WEAK, "TensorFlow, coordinator.py"),
    _rule("reached monitoredBarrier", r"reached monitoredBarrier, but received errors while waiting", _K.PEER_LOST, _T.VICTIM, "c10d, ProcessGroupGloo.cpp"),
    _rule("not found", rf"^(?:\S+: ){{0,2}}(?:line )?(?:\d+: )?{_LAUNCHER}: (?:command )?not found$|exec: \"{_LAUNCHER}\": executable file not found in \$PATH", _K.SCRIPT_MISSING, _T.OWN, "sh, bash, runc: the launcher isn't installed"),
    _rule("execve()", rf"error: execve\(\): {_LAUNCHER}: No such file or directory", _K.SCRIPT_MISSING, _T.OWN, "slurmstepd: the launcher isn't installed"),
    _rule("symbol lookup error|shared libraries", r"^\S+: (?:symbol lookup error: \S|error while loading shared libraries: \S)", _K.LIBRARY_MISSING, _T.OWN, "glibc, dl-load.c and dl-lookup.c: the process ends with 127"),
    _rule("loss scale", r"[Ll]oss scale (?:is )?already at (?:its )?minimum|[Mm]inimum loss scale reached", _K.NOT_FINITE, _T.WEAK, "DeepSpeed, loss_scaler.py; fairseq, dynamic_loss_scaler.py"),
    _rule("cudaError_t", r"cudaError_t \d+ ?: ?\"?(?:unspecified launch failure|an illegal instruction)", _K.LAUNCH_FAILURE, _T.OWN, "Kaldi, cu-common.h"),
    _rule("cudaError_t", r"cudaError_t \d+ ?: ?\"?an illegal memory access", _K.ILLEGAL_ACCESS, _T.OWN, "Kaldi, cu-common.h"),
    _rule("insufficient shared memory", r"bus error encountered in worker\. This might be caused by insufficient shared memory", _K.SHARED_MEMORY, _T.OWN, "torch/csrc/DataLoader.cpp"),
    _rule("Remote daemon", r"Remote daemon: \S+ on node (?P<node>[\w.-]+)", _K.NODE_FAILED, _T.FACT, "Open MPI, ORTE"),
    _rule("no rank advances", r"rankmend: incident \S+ no rank advances; ranks? (?P<ranks>\d[\d, and-]*):", _K.HANG_HOST, _T.STALL, "rankmend run"),
    _rule("was encountered", r"^(?:(?:\[?CUDA (?:ERROR|error)\b|GPUassert:).{0,160}[: ])?an illegal memory access was encountered\b(?: \S+ \d+)?$", _K.ILLEGAL_ACCESS, _T.OWN, "programs in C that print cudaGetErrorString()"),
    _rule("Memory access fault", r"Memory access fault by GPU node-\d+", _K.ILLEGAL_ACCESS, _T.OWN, "ROCm"),
    _rule("HW Exception", r"HW Exception by GPU node-\d+", _K.GPU_HARDWARE, _T.OWN, "ROCm: the runtime's word for a GPU that hangs"),
    _rule("stream synchronize failed", r"ACL stream synchronize failed", _K.LAUNCH_FAILURE, _T.OWN, "torch_npu, NPUStream.cpp"),
    _rule("Mismatched NCCL", r"Mismatched NCCL version detected", _K.NCCL_VERSIONS, _T.OWN, "NCCL"),
    _rule("Duplicate GPU", r"Duplicate GPU detected ?: rank (?P<ranks>\d+)", _K.NCCL_USAGE, _T.OWN, "NCCL"),
    _rule("NET/", r"NET/\w+ ?: ?(?:\S+ )?Got (?:async|port)[^:]{0,20}event ?: ?.*(?:error|fatal|down)|NET/IB ?: ?\S+:\d+ (?:unknown |Got )?[Aa]sync(?:hronous)? (?:fatal )?(?:event|error)", _K.LINK_ERROR, _T.FACT, "NCCL net_ib.cc: the local port's own event"),
    _rule("Got completion", r"Got completion from peer (?P<peer>[^\s<]+)(?:<\d+>)? with (?:status=(?:IBV_WC_\w*FLUSH\w*\(?\d*\)?|5)\b|error 5\b)", _K.LINK_ERROR, _T.VICTIM, "NCCL: IBV_WC_WR_FLUSH_ERR follows another error"),
    _rule("Got completion", r"Got completion (?:from peer (?P<peer>[^\s<]+)(?:<\d+>)? )?with (?:status|error)", _K.LINK_ERROR, _T.STALL, "NCCL net_ib.cc"),
    _rule("write to EQ", r"^Unable to write to EQ: .{0,80}\berr: ", _K.NCCL_SYSTEM, _T.VICTIM, "libfabric, prov/efa: it ends the process"),
    _rule("UCX |ib_mlx5_log", r"(?:UCX +(?:ERROR|FATAL) |ib_mlx5_log\.c:\d+ ).*(?:[Rr]etry (?:count|counter) exceeded|Remote operation|Local QP operation|Endpoint timeout|Connection reset by remote peer|Input/output error)", _K.LINK_ERROR, _T.STALL, "UCX, ib_mlx5_log.c"),
    _rule("encountered an error", r"Local process \d+ encountered an error: \[Errno (?:5|30|103|107|108|116)\]", _K.STORAGE_ERROR, _T.OWN, "Megatron-LM, filesystem_async.py"),
    _rule("encountered an error", r"Local process \d+ encountered an error: \[Errno 28\]", _K.DISK_FULL, _T.OWN, "Megatron-LM, filesystem_async.py"),
    _rule("malloc|free|corrupted|chunk", r"^(?:malloc|free|realloc|malloc_consolidate|munmap_chunk)\(\): \w|^double free or corruption|^corrupted (?:size|double-linked)", _K.ABORTED, _T.END, "glibc, malloc.c"),
    _rule("Assertion", r"^\S{1,200}: \S{1,300}:\d+: .{1,400}Assertion [`'].{1,400}' failed\.$", _K.ABORTED, _T.END, "glibc, assert.c"),
    _rule("__terminate", r"\b__cxxabiv1::__terminate\(", _K.ABORTED, _T.WEAK, "libstdc++, in the stack that Ray prints"),
    _rule("() failed: ", r"\b(?:open|close|stat|mkdir|rename|fsync|ftruncate)\(\) failed: (?:Transport endpoint is not connected|Input/output error|Stale file handle|Read-only file system)", _K.STORAGE_ERROR, _T.WEAK, "TensorFlow, posix_file_system.cc: a mount that went away"),
    _rule("NCCL WARN", r"NCCL WARN .*(?:shared memory segment|/dev/shm).*|NCCL WARN .*No space left on device", _K.SHARED_MEMORY, _T.OWN, "NCCL shm.cc"),
    _rule("NCCL WARN", r"NCCL WARN .*(?:Cuda failure|CUDA failure).*out of memory|NCCL WARN (?:Failed to CUDA|Cuda).*(?:alloc|memory)", _K.DEVICE_MEMORY, _T.OWN, "NCCL alloc.h"),
    _rule("NCCL WARN", r"NCCL WARN .*(?:Cuda failure|CUDA failure).*(?:ECC|NVLink error|hardware)", _K.GPU_HARDWARE, _T.OWN, "NCCL"),
    _rule("NCCL WARN", r"NCCL WARN .*(?:Cuda failure|CUDA failure).*illegal memory access", _K.ILLEGAL_ACCESS, _T.OWN, "NCCL"),
    _rule("NCCL WARN", r"NCCL WARN .*(?:Call to \w+ (?:from|to) (?P<peer>[\d.:a-fA-F\[\]]+)|Connect to \S+ (?:failed|returned)|[Cc]onnection (?:closed|refused|reset|timed out)|[Bb]roken pipe|remote peer|closed by remote)", _K.PEER_LOST, _T.VICTIM, "NCCL socket.cc"),
    _rule("NCCL WARN", r"NCCL WARN .*(?:Cuda failure|CUDA failure).*(?:not yet initialized|unknown error|SYSTEM_NOT_READY)", _K.GPU_HARDWARE, _T.OWN, "NCCL: the fabric manager isn't there, or the device answers nothing"),
    _rule("NCCL WARN", r"NCCL WARN .*(?:Cuda failure|CUDA failure).*driver version", _K.DRIVER, _T.OWN, "NCCL"),
    _rule("NCCL WARN", r"NCCL WARN NET/\w+ .*completed with error", _K.LINK_ERROR, _T.STALL, "aws-ofi-nccl, nccl_ofi_net.c"),
    _rule("NCCL WARN", r"NCCL WARN Call to ibv_\w+ failed .*(?:timed out|[Uu]nreachable)", _K.LINK_ERROR, _T.STALL, "NCCL ibvwrap.cc"),
    _rule("NCCL WARN", r"NCCL WARN (?:Socket creation failed|Call to (?:socket|bind|listen|getsockname) failed)", _K.NCCL_SYSTEM, _T.VICTIM, "NCCL, socket.cc"),
    _rule("NCCL WARN", r"NCCL WARN (?:Call to ibv_\w+ failed|NET/(?!Plugin)\w+ .*(?:[Ff]ailed|[Cc]ouldn't|RC: -?\d))", _K.NCCL_SYSTEM, _T.VICTIM, "NCCL ibvwrap.cc, aws-ofi-nccl"),
    _rule("EL0004", r"\bEL0004: ", _K.DEVICE_MEMORY, _T.OWN, "CANN: no memory of the NPU"),
    _rule("EI|EJ", r"\bE[IJ]\d{4}: ", _K.NCCL_SYSTEM, _T.VICTIM, "CANN: HCCL and its processes"),
    _rule("error code is|execute failed", r"NPU (?:function )?(?:error|warning).{0,40}error code is \d+|\brt[A-Z]\w+ execute failed", _K.LAUNCH_FAILURE, _T.WEAK, "CANN, torch_npu"),
    _rule("error: ", r"^(?:\S+\.py|[A-Za-z][\w-]{1,30})(?: [\w-]{1,30}){0,4}: error: (?:unrecognized arguments|the following arguments are required|argument |ambiguous option|one of the arguments|too few arguments)", _K.USAGE, _T.OWN, "argparse: the program's name may have several words"),
    _rule("Error: ", r"^Error: (?:No such (?:option|command)|Missing (?:argument|option|parameter)|Invalid value for|Got unexpected extra argument)", _K.USAGE, _T.OWN, "click"),
    _rule("Could not |Key '|onfig |Error merging", r"^(?:Could not (?:override|append|delete) |Key '[^']+' is not in struct|Primary config |Cannot find primary config|Error merging \S)", _K.USAGE, _T.OWN, "hydra"),
    _rule("wandb: ERROR", r"wandb: ERROR (?:api_key not configured|.*(?:API key|permission denied))", _K.NOT_AUTHORIZED, _T.OWN, "wandb"),
    _rule("wandb: ERROR", r"wandb: ERROR Run initialization has timed out", _K.SERVICE_AWAY, _T.OWN, "wandb, wandb_init.py"),
    _rule("EADDRINUSE|ddress already", r"EADDRINUSE|[Aa]ddress already in use", _K.PORT_IN_USE, _T.STALL, "c10d, socket.cpp"),
    _rule("clients|imeoutError|rendezvous", r"\b\d+/\d+ clients joined|Timed out after \d+ seconds waiting for clients|RendezvousTimeoutError|rendezvous.{0,60}timed out", _K.NEVER_JOINED, _T.STALL, "c10d, TCPStore.cpp"),
    _rule("client socket", r"\[c10d\] The client socket has timed out after \d", _K.NEVER_JOINED, _T.VICTIM, "c10d, socket.cpp"),
    _rule("connect/validate to host", r"TCP client failed to connect/validate to host \S+ - (?:retrying|timed out)", _K.NEVER_JOINED, _T.WEAK, "c10d, TCPStore.cpp: an attempt that another may follow"),
    _rule("resolve hostname", r"\bssh: Could not resolve hostname \S+: ", _K.NEVER_JOINED, _T.WEAK, "OpenSSH, below mpirun or horovodrun"),
    _rule("replica(s) failed", r"[A-Z]\w{1,20}Job \S{1,100} (?:has failed|is restarting) because \d+ \w+ replica\(s\) failed", _K.EXIT_CODE, _T.WEAK, "Kubeflow's training operator"),
    _rule("monitoredBarrier", r"failed to pass monitoredBarrier", _K.HANG_HOST, _T.STALL, "c10d, ProcessGroupGloo.cpp"),
    _rule("Detected mismatch", r"Detected mismatch between collectives on ranks", _K.HANG_MISMATCH, _T.STALL, "c10d, ProcessGroupWrapper.cpp"),
    _rule("atchdog|Timeout at", r"Watchdog caught collective operation timeout|Timeout at (?:NCCL|collective) ?(?:work)?|failure detected by watchdog", _K.HANG, _T.STALL, "c10d, ProcessGroupNCCL.cpp"),
    _rule("atchdog|eartbeat", r"watchdog got stuck for|Heartbeat monitor timed out", _K.WATCHDOG_STUCK, _T.STALL, "c10d, ProcessGroupNCCL.cpp"),
    _rule("nan|NaN|NAN|inite|iverged|inf|INF|Nan", r"(?i)\b(?:found nan|nan (?:detected|found|encountered|value)|loss (?:is|became|has become|went|turned) (?:now )?(?:nan|inf|not finite)|non-?finite (?:loss|grad)|(?:nan|inf)s? in (?:the )?(?:local|loss|grad|forward|backward)|loss diverged)", _K.NOT_FINITE, _T.WEAK, "Megatron-LM, Lightning and others"),
)  # fmt: skip
# A line without any of these states no fact. A loop over words takes a tenth of the time of one pattern of them.
_CANDIDATES: Final = (
    *("rror", "ill", "ail", "exit", "code", "SIG", "ignal", "CANCEL", "FAIL", "NCCL WARN", "NET/", "oom", "OOM", "atchdog", "Exit", "EXIT"),
    *("eartbeat", "reempt", "PREEMPT", "vict", "low on", "NodeLost", "NodeNot", "nan", "NaN", "NAN", "in use", "EADDR", "clients", "imed out"),
    *("imeout", "MPI_", "process", "rank ", "ranks ", "egmentation", "Bus", "Illegal", "Aborted", "override", "struct", "config", "DUE", "limit"),
    *("disconnected", "shut down", "lost communication", "route a message", "error occurred in MPI_", "Process name", "er user-direction"),
    *("died or was killed", "memory pressure", "running low on memory", "insufficient shared memory", "not found", "execve()", "oss scale"),
    *("EI", "EJ", "EL0", "allclock", "alltime", "deadline", "preempt", "deleted at", "MaxRuntime", "is preempted"),
    *("malloc", "free", "corrupted", "chunk", "OwnerDied", "inite", "ismatched", "HW Exc", "UCX ", "ib_mlx5_log", "remainder of", "/task:", "emote daemon", "no rank adv", "access fault", "was encountered", "__terminate", "write to EQ", "device handle", "went down", "resolve hostname", "open image", "EXHAUSTED", "exhausted"),
)  # fmt: skip
_INDENTED_WORDS: Final = (
    "replica(s) failed",
    "sequence",
    "[",
    "OOMKilled",
    "was preempted",
    "exceeds the",
    "ephemeral storage limit",
    "Process name",
    '"message": "Rendezvous',
    "ERROR  ",  # Rich puts blanks where the time hasn't changed
)
_KERNEL_WORDS: Final = ("kernel: ", "NVRM: ", "Out of memory: Kill", "oom-kill:")


def _has_any(text: str, words: Sequence[str]) -> bool:
    for word in words:  # noqa: SIM110 - a loop is twice as fast as any()
        if word in text:
            return True
    return False


# torchrun's table of ends. Source: torch/distributed/elastic/multiprocessing/errors/__init__.py.
_TABLE_HOST: Final = re.compile(r"^\s+host\s+: (\S+)")
_TABLE_RANK: Final = re.compile(r"^\s+rank\s+: (\d+) \(local_rank: (\d+)\)")
_TABLE_EXIT: Final = re.compile(r"^\s+exitcode\s+: (-?\d+) ")
_ROOT: Final = "Root Cause (first observed failure)"
_HYDRA_RANK: Final = re.compile(r"RANK (\d+) PID \d+ RUNNING AT (\S+)")
_HYDRA_SIGNAL: Final = re.compile(r"KILLED BY SIGNAL: (\d+)")
_SIGNALS: Final = {
    9: (_K.KILLED, _T.END),
    11: (_K.SEGFAULT, _T.END),
    7: (_K.BUS_ERROR, _T.END),
    6: (_K.ABORTED, _T.WEAK),
    4: (_K.CRASHED, _T.END),
    8: (_K.CRASHED, _T.END),
    13: (_K.EXIT_CODE, _T.WEAK),  # whoever read its output or its socket is gone
    15: (_K.TERMINATED, _T.VICTIM),
    2: (_K.INTERRUPTED, _T.VICTIM),
}
_COMM: Final = re.compile(r"NCCL INFO .*\brank (\d+) nranks (\d+)\b")
_WORLD: Final = re.compile(
    r"(?i)\bworld[_ ]?size['\"]?\s{0,40}(?:[=:]|is|\.{2,60})?\s{0,3}(\d{1,7})\b|distributed_backend=\w+.*MEMBER: \d+/(\d{1,7})|\b\d+/(\d{1,7}) clients joined|store-based barrier for key:\S+ with (\d{1,7}) nodes|Out of all (\d{1,7}) trainers"
)
_WORLD_WORDS: Final = ("orld", "ORLD", "MEMBER", "clients", "-based barrier", "trainers")
_SUCCESS_WORDS: Final = ("raining", "Trainer.fit", "train_runtime", "exits successfully")
# A run that says that it has ended well.
_SUCCESS: Final = re.compile(
    r"(?i)\btraining (?:is |has |was )?(?:completed?|finished|done)\b|`Trainer\.fit` stopped: `max_|'train_runtime'|exits successfully"
)
# A thousand collectives of one group: no program starts with as many, so steps were made.
_WORK: Final = re.compile(r"SeqNum=(\d{1,12})\b")
_STEPS_WORKS_MIN: Final = 1_000
_MEMBER: Final = re.compile(r"GLOBAL_RANK: (\d+), MEMBER: \d+/(\d+)")
_RESUMED: Final = re.compile(
    r"(?i)resum(?:ed|ing)\b[^\n]{0,60}(?:checkpoint|ckpt|step|iteration|epoch|from)|(?:successfully )?loaded checkpoint|loading checkpoint from|restor(?:ed|ing) (?:from|states)"
)
_ATTEMPT: Final = re.compile(
    r"\d+/\d+ attempts left; will restart worker group|[Rr]estarting worker group|restart_count=[1-9]\d*|\battempt [2-9]\d* (?:of|starts|begins|started)|rankmend: (?:starting )?attempt [2-9]|\bCycle: [1-9]\d*\b|Requeued? job|\[rankmend\] attempt [2-9]"
)


def read_facts(sources: Sequence[SourceLines]) -> LogFacts:
    """Return what the sources state, in the order of their lines."""
    job = LogFacts()
    found: list[LogFact] = []
    begins: dict[int, int] = {}
    judge = _ErrorJudge()
    named: list[LogLine] = []  # lines that name an error
    for place, source in enumerate(sources):
        begins[place] = _read_lines(source, job, found, named)
        for _rank, lines in streams_of(source):
            found += judge.errors_of(lines)
            if len(found) > FACTS_MAX:
                break
        begin = begins[place]
        last = source.last_progress
        job.has_progress = job.has_progress or (last is not None and last >= begin)
        job.ranks |= source.ranks
        job.ranks.update(line.rank for line in source.lines if line.rank is not None)
    found = [*_bare_facts(named, found, judge), *found]
    found = _with_last_words(found, sources)
    ordered = sorted(found, key=lambda fact: (fact.line.number, fact.line.source))
    job.facts = [fact for fact in ordered if fact.line.number >= begins[fact.line.source]]
    job.earlier = [fact for fact in ordered if fact.line.number < begins[fact.line.source]]
    if not job.facts and job.earlier:  # the last attempt says nothing of its end
        job.facts, job.earlier = job.earlier, []
    for fact in job.facts:
        job.ranks.update(fact.ranks)
        if fact.node and len(fact.ranks) == 1:
            job.node_of.setdefault(fact.ranks[0], fact.node)
    return job


LAST_WORDS_LINES_MAX: Final = 40  # of a launcher's and an interpreter's end


def _with_last_words(found: list[LogFact], sources: Sequence[SourceLines]) -> list[LogFact]:
    """Return the facts; an error that the program logged and after which it said nothing more is its own end."""
    if not any(fact.own_tier is not None for fact in found):
        return found
    last: dict[int, int] = {}  # the line of a source after which nothing but an exit code is stated
    for fact in found:
        if fact.own_tier is None and fact.kind is not LogKind.EXIT_CODE:
            place = fact.line.source
            last[place] = max(last.get(place, 0), fact.line.number)
    return [
        replace(fact, tier=fact.own_tier)
        if fact.own_tier is not None and _is_last(fact, sources[fact.line.source], last)
        else fact
        for fact in found
    ]


def _is_last(fact: LogFact, source: SourceLines, last: Mapping[int, int]) -> bool:
    number = fact.line.number
    return (
        number > last.get(fact.line.source, 0)
        and number > (source.last_progress or 0)
        and source.count - number <= LAST_WORDS_LINES_MAX
    )


def _bare_facts(
    named: Sequence[LogLine], found: Sequence[LogFact], judge: "_ErrorJudge"
) -> list[LogFact]:
    """Return the facts of lines that name an error and end no traceback, which would say more."""
    reported = {
        (fact.line.source, fact.line.number)
        for fact in found
        if fact.error is not None and "\n" in fact.error.traceback
    }
    lines = (line for line in named if (line.source, line.number) not in reported)
    return [fact for line in lines if (fact := judge.bare_fact(line)) is not None]


def _read_lines(  # noqa: PLR0912, PLR0915 - one branch for each form of a line
    source: SourceLines, job: LogFacts, found: list[LogFact], named: list[LogLine]
) -> int:
    """Add the facts of single lines; return the line in which the last attempt begins."""
    begin = 0
    matcher = Matcher()
    plans: dict[str | bytes, _LinePlan] = {}
    table_rank: tuple[int, int] | None = None
    table_host = hydra_host = None
    hydra_rank: int | None = None
    is_root = is_ending = False
    for line in source.lines:
        text = line.text
        if line.rank is not None and line.node is not None:
            job.node_of.setdefault(line.rank, line.node)
        shape = _shape(text)
        plan = plans.get(shape)
        if plan is None:
            if len(plans) >= _SHAPES_MAX:
                plans.clear()
            plan = plans[shape] = _plan(text)
        may_be_kernels = plan.has_kernel_word or (text[:1] == "[" and text[1:2] in _STAMP_STARTS)
        if may_be_kernels and is_kernels_line(text) and (fact := _kernel_fact(matcher, line)):
            found.append(fact)
            continue
        if plan.has_root:
            is_root = True
        if text[:1] == " " or text[:1] == "\t":
            if match := _TABLE_HOST.match(text):
                table_host = match[1]
                continue
            if match := _TABLE_RANK.match(text):
                table_rank = int(match[1]), int(match[2])
                if table_host:
                    job.node_of.setdefault(table_rank[0], table_host)
                continue
            if (match := _TABLE_EXIT.match(text)) and table_rank is not None:
                found.append(_table_fact(line, int(match[1]), table_rank, table_host, is_root))
                continue
            if match := _HYDRA_RANK.search(text):
                hydra_rank, hydra_host = int(match[1]), match[2]
            if not _has_any(text, _INDENTED_WORDS):
                continue
        if plan.has_communicator and (match := _COMM.search(text)):
            if int(match[2]) >= (job.world or 0):
                job.world = int(match[2])
                if line.node:
                    job.node_of[int(match[1])] = line.node
            continue
        if plan.is_of_hydra:
            if match := _HYDRA_RANK.search(text):
                hydra_rank, hydra_host = int(match[1]), match[2]
            if (match := _HYDRA_SIGNAL.search(text)) and hydra_rank is not None:
                kind, tier = _SIGNALS.get(int(match[1]), (_K.CRASHED, _T.END))
                found.append(LogFact(kind, tier, line, text.strip(), (hydra_rank,), hydra_host))
                continue
        if not plan.may_match:
            continue
        if plan.has_work and (match := _WORK.search(text)):
            job.has_progress = job.has_progress or int(match[1]) >= _STEPS_WORKS_MIN
        if plan.has_member and (match := _MEMBER.search(text)):
            job.world = max(job.world or 0, int(match[2]))
            job.ranks.add(int(match[1]))
        elif plan.has_world and (match := _WORLD.search(text)):
            size = next((int(group) for group in match.groups() if group), 0)
            is_of_setting = "AssertionError" in text or "ValueError" in text
            if (
                0 < size <= 1_000_000 and not is_of_setting
            ):  # such an error quotes sizes that don't fit
                job.world = max(job.world or 0, size)
        if plan.has_success and _SUCCESS.search(text):
            job.ended_well = line
        if plan.has_resumed and _RESUMED.search(text):
            job.has_resumed = True
        if plan.has_attempt and _ATTEMPT.search(text):
            job.attempts += 1
            begin = line.number
        if plan.may_state:
            if fact := _line_fact(line, plan):
                if is_ending and fact.kind is _K.KILLED and text.startswith("srun: "):
                    fact = replace(fact, kind=_K.TERMINATED, tier=_T.VICTIM)
                is_ending = is_ending or (plan.may_end_step and _ENDS_STEP.search(text) is not None)
                found.append(fact)
            elif _BARE.match(text):
                named.append(line)
        if len(found) + len(named) > FACTS_MAX:
            break
    return begin


# Slurm ends a step: whom srun reports as killed after that was stopped.
_ENDS_STEP: Final = re.compile(
    r"Terminating (?:StepId|job step)|\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED"
)


# Numbers that decide nothing: stamps, addresses, a rank behind its word, those of four digits or more. An exit code has
# three, a signal two. Ranks that print the same line have one shape of it.
_NUMBERS: Final = re.compile(r"(?<=[Rr]ank )\d+|\d\d:\d\d:\d\d|\d{1,3}(?:\.\d{1,3}){3}|\d{4,}")
# Some rules look for a code, a signal, a status or an errno. In a line without these words no number decides which rule
# matches, and to take all digits out costs a tenth.
_CODE_WORDS: Final = ("exit", "code", "ignal", "SIG", "with status", "with error", "Errno", "died")
_SHAPES_MAX: Final = 20_000


def _shape(text: str) -> str | bytes:
    """Return a line without the numbers that differ between ranks."""
    if _has_any(text, _CODE_WORDS):
        return _NUMBERS.sub("0", text)
    return text.encode("utf-8", "surrogatepass").translate(None, b"0123456789")


@dataclass(slots=True)
class _LinePlan:
    """Which patterns a line of one shape needs, by its words; the others can't match."""

    has_work: bool
    has_member: bool
    has_world: bool
    has_success: bool
    has_resumed: bool
    has_attempt: bool
    may_state: bool
    may_match: bool  # any of these
    has_kernel_word: bool
    has_root: bool
    has_communicator: bool
    is_of_hydra: bool
    may_end: bool
    may_end_step: bool
    may_be_device: bool
    has_local_rank: bool
    rule: LineRule | None = None  # that a line of this shape matched
    is_ruled: bool = False  # whether the rules were tried


# One of these is in all that `_RANK_END` matches, in small letters, and one of the others.
_END_WORDS: Final = ("exited", "exits", "crashed", "terminated", "died", "failed", "finished")


def _plan(text: str) -> _LinePlan:
    has_code = ("code" in text or "status" in text) and _has_any(text.lower(), _END_WORDS)
    has_work, has_member = "SeqNum=" in text, "GLOBAL_RANK" in text
    has_world, has_success = _has_any(text, _WORLD_WORDS), _has_any(text, _SUCCESS_WORDS)
    has_resumed = _has_any(text, ("oad", "esum", "estor"))
    has_attempt = _has_any(text, ("start", "ttempt", "Cycle", "equeue"))
    may_state = _has_any(text, _CANDIDATES)
    return _LinePlan(
        has_work=has_work,
        has_member=has_member,
        has_world=has_world,
        has_success=has_success,
        has_resumed=has_resumed,
        has_attempt=has_attempt,
        may_state=may_state,
        may_match=any(
            (has_work, has_member, has_world, has_success, has_resumed, has_attempt, may_state)
        ),
        has_kernel_word=_has_any(text, _KERNEL_WORDS),
        has_root=_ROOT in text,
        has_communicator="nranks" in text,
        is_of_hydra="RUNNING AT" in text or "KILLED BY" in text,
        may_end=(has_code or "was aborted" in text) and ("ank" in text or "rocess" in text),
        may_end_step="CANCELLED" in text or "Terminating" in text,
        may_be_device="terminated with exception" in text,
        has_local_rank="local_rank" in text,
    )


# How launchers say that a rank ended by itself: Composer, Lightning, torch/multiprocessing/spawn.py. A number behind
# "process" is a rank only in spawn's words; elsewhere it is a process id, and a local rank names no rank of the job.
_RANK_END: Final = re.compile(
    r"(?i)(?:(?<!local )\brank[ :#=]{0,3}(\d{1,7})\]?[^\d\w][^\n]{0,60}?\b(?:exited|exits|crashed|terminated|died|failed|finished)\b[^\n]{0,24}?\b(?:code|status)"
    r"|\bprocess (\d{1,7}) terminated with exit code)[ :=]{0,3}(-?\d{1,3})\b"
)
_SIGNAL_CODES: Final = range(129, 160)  # a shell's: 128 and the signal
# An error of a device that the watchdog's thread met, in the words of the CUDA or HIP runtime.
# Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
_WATCHDOG_ERROR: Final = re.compile(
    r"watchdog thread terminated with exception: (?:\[Rank \d+\] )?((?:CUDA|HIP) error: .*)"
)
_OF_RANK: Final = re.compile(r"\bRank (\d{1,7})\]")


# Source: paddle/distributed/launch_utils.py, watch_local_trainers.
_ABORTED_TRAINERS: Final = re.compile(r"trainer process with rank=\[([\d, ]{1,4000})\] was aborted")


def _end_fact(line: LogLine) -> LogFact | None:
    """Return how a rank ended where a launcher names it and its code."""
    if match := _ABORTED_TRAINERS.search(line.text):
        ranks = parse_ranks(match[1])
        text = "exit code that isn't told, of trainers that were aborted"
        ended = LaunchersWord.ENDED
        return LogFact(_K.EXIT_CODE, _T.WEAK, line, text, ranks, line.node, launchers_word=ended)
    if (match := _RANK_END.search(line.text)) is None:
        return None
    rank, code = int(match[1] or match[2]), int(match[3])
    if code in _SIGNAL_CODES:
        code = 128 - code
    if code == 0:
        return None
    return replace(_table_fact(line, code, (rank, rank), line.node, False), local_rank=None)


def _device_fact(line: LogLine) -> LogFact | None:
    """Return the device's error that a watchdog repeats: it names the rank."""
    if (match := _WATCHDOG_ERROR.search(line.text)) is None:
        return None
    error = _bare_error("RuntimeError", match[1][:_TEXT_CHARS_MAX])
    kind, print_ = _kind_of_device(_OWN_NUMBERS.sub("0", error.message))
    rank = _OF_RANK.search(line.text)
    ranks = (int(rank[1]),) if rank else (line.rank,) if line.rank is not None else ()
    text = line.text.strip()[:_TEXT_CHARS_MAX]
    return LogFact(kind, FactTier.OWN, line, text, ranks, line.node, print_=print_, error=error)


@lru_cache(maxsize=256)
def _kind_of_device(message: str) -> tuple[LogKind, str]:
    """Return the kind of a device's error by its words; thousands of ranks print the same."""
    error = _bare_error("RuntimeError", message)
    return kind_of_error(classify(error), error)[0], fingerprint(error)


def _line_fact(line: LogLine, plan: _LinePlan) -> LogFact | None:
    text = line.text
    if plan.may_end and (fact := _end_fact(line)) is not None:
        return fact
    if plan.may_be_device and (fact := _device_fact(line)) is not None:
        return fact
    if plan.is_ruled and plan.rule is None:
        return None
    match = plan.rule.pattern.search(text) if plan.rule is not None else None
    if match is None or plan.rule is None:
        plan.rule, match = _first_rule(text)
        plan.is_ruled = True
    if match is None or plan.rule is None:
        return None
    rule = plan.rule
    groups = match.groupdict() if rule.pattern.groups else _NO_GROUPS
    ranks = parse_ranks(groups["ranks"]) if groups.get("ranks") else ()
    if not ranks and line.rank is not None:
        ranks = (line.rank,)
    local = _LOCAL_RANK.search(text) if plan.has_local_rank else None
    return LogFact(
        rule.kind,
        rule.tier,
        line,
        text.strip()[:_TEXT_CHARS_MAX],
        ranks,
        groups.get("node") or groups.get("node2") or line.node,
        groups.get("peer"),
        local_rank=int(local[1]) if local else None,
    )


_NO_GROUPS: Final[Mapping[str, str]] = {}
_LOCAL_RANK: Final = re.compile(r"local_rank: (\d+)")


def _first_rule(text: str) -> tuple[LineRule | None, re.Match[str] | None]:
    """Return the first rule that a line matches."""
    for rule in LINE_RULES:
        for need in rule.needs:
            if need in text:
                break
        else:
            continue
        if match := rule.pattern.search(text):
            return rule, match
    return None, None


_BARE: Final = re.compile(
    r"^(?:\S+ (?:ERROR|CRITICAL)[ :\]-]{1,4})?((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt)|Exception))(?: \(see above for traceback\))?: ?(.*)$"
)  # TensorFlow 1 speaks of what stands above.


# What differs between ranks that print one error: addresses, pointers, how long they waited.
_OWN_NUMBERS: Final = re.compile(
    r"\d{1,3}(?:\.\d{1,3}){3}\]?(?::|<)\d+|\b0x[0-9a-f]+|\bran for \d+|\bpid \d+"
)


def _without_own_numbers(text: str) -> str:
    has_word = "0x" in text or "ran for " in text or "pid " in text
    return _OWN_NUMBERS.sub("0", text) if has_word or text.count(".") >= 3 else text


def _bare_error(type_name: str, message: str) -> ErrorText:
    return ErrorText(type_name, message, f"{type_name}: {message}")


def parse_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a list such as ``0-3,7`` or ``1 and 4``, bounded."""
    ranks: list[int] = []
    for first, last in re.findall(r"(\d{1,7})(?:\s*-\s*(\d{1,7}))?", text):
        low, high = int(first), int(last or first)
        ranks += range(low, min(high, low + _RANKS_MAX) + 1)
        if len(ranks) > _RANKS_MAX:
            break
    return tuple(dict.fromkeys(ranks[:_RANKS_MAX]))


def is_kernels_line(text: str) -> bool:
    """Return whether a line has the form of the kernel's log."""
    if text[:1] == "[" and text[1:2] in _STAMP_STARTS and _KERNEL_STAMP.match(text):
        return True
    return _has_any(text, _KERNEL_WORDS) and _KERNEL.search(text) is not None


def _kernel_fact(matcher: Matcher, line: LogLine) -> LogFact | None:
    """Return what the kernel reports, by the rules of `detectors.kernel`."""
    event = matcher.match(parse_line(line.text))
    if event is None:
        return None
    kind = _kind_of_event(event, line.text)
    if kind is None:
        return None
    host = _SYSLOG_HOST.match(line.text)
    ranks = (line.rank,) if line.rank is not None else ()
    node = (host[1] or host[2]) if host else line.node
    # A link that went down may have come up again: it explains ranks that wait, and nothing else.
    tier = FactTier.STALL if event.kind is EventKind.LINK_DOWN else FactTier.FACT
    return LogFact(kind, tier, line, line.text.strip()[:_TEXT_CHARS_MAX], ranks, node)


# A channel that goes down with the one that failed names its error. Source: NVRM, Xid 45 of drivers from 570 on.
_PREVIOUS_XID: Final = re.compile(r"caused by previous Xid (\d{1,3})")


def _kind_of_event(event: KernelEvent, text: str) -> LogKind | None:
    if event.kind is EventKind.XID:
        previous = _PREVIOUS_XID.search(text)
        code = int(previous[1]) if previous else event.code or 0
        is_own = code in _XIDS or code in _NVLINK_XIDS
        return LogKind.GPU_HARDWARE if is_own else None
    return _EVENTS.get(event.kind)


def _table_fact(
    line: LogLine, code: int, rank: tuple[int, int], host: str | None, is_root: bool
) -> LogFact:
    kind, tier = LogKind.EXIT_CODE, FactTier.WEAK
    if code == 93:  # as `detectors.failed.failed_ranks.DO_NOT_RETRY`
        kind, tier = LogKind.DO_NOT_RETRY, FactTier.FACT
    elif code < 0:
        kind, tier = _SIGNALS.get(-code, (LogKind.CRASHED, FactTier.END))
    text = f"exit code {code} of rank {rank[0]}{', the first that torchrun observed' if is_root else ''}"
    word = LaunchersWord.FIRST if is_root else LaunchersWord.ENDED
    return LogFact(
        kind, tier, line, text, (rank[0],), host, local_rank=rank[1], launchers_word=word
    )


# --- errors ---------------------------------------------------------------------------------------

_LAUNCHERS: Final = frozenset(
    {"ChildFailedError", "SystemExit", "CalledProcessError", "ProcessExitedException"}
)
_SPAWN: Final = 'torch/multiprocessing/spawn.py"'
# The same before PyTorch 1.6. Source: torch/multiprocessing/spawn.py.
_SPAWNS_WORD: Final = re.compile(r"process \d+ terminated with (?:signal|exit code) ")
# What a checkpoint's planner raises for its ranks names them; each rank's own error follows.
_OF_RANKS: Final = "CheckpointException ranks:"
# They pass on another error, which stands beside them.
_WRAPPERS: Final = frozenset(
    {
        "ProcessRaisedException",
        "ExceptionGroup",
        "BaseExceptionGroup",
        "RayTaskError",
        "TrainingFailedError",
    }
)


EXACT_ERRORS_MAX: Final = 128  # judged by all patterns, 1 ms each
_ALIKE_MAX: Final = 512  # streams that differ
# What tells the kinds of errors apart, in the message and in the frame that raised it. Errors of one type with the same
# of these words are alike.
_KIND_WORDS: Final = (
    *("nccl", "hccl", "cuda", "hip", "ecc", "nvlink", "nvml", "driver", "memory", "alloc", "shm", "shared", "connection", "peer", "time"),
    *("socket", "address", "broken", "pipe", "reset", "refused", "checkpoint", "ckpt", "state", "snapshot", "load", "restor", "resum", "archive"),
    *("zip", "pickle", "quota", "space", "disk", "stale", "input/output", "read-only", "denied", "token", "auth", "http", "ssl", "host", "name"),
    *("retr", "nan", "inf", "finite", "size", "shape", "match", "dtype", "device", "config", "divisible", "argument", "key", "module", "import"),
    *("worker", "kill", "signal", "gloo", "mpi", "file", "director", "json", "decod", "pars", "grad", "backward", "inplace", "param", "rendezvous"),
    *("store", "barrier", "join", "assert", "illegal", "kernel", "launch", "object", "attribut", "index", "batch", "sample", "empty", "data"),
    *("site-packages", "lib/python", "save", "forward", "none"),
)  # fmt: skip


@lru_cache(maxsize=512)
def _kind_words(text: str) -> tuple[str, ...]:
    return tuple(word for word in _KIND_WORDS if word in text)


_CODES: Final = re.compile(r"errno \d+|\b[45]\d\d\b")


class _ErrorJudge:
    """Judges the errors of a log; thousands that are alike are judged once.

    Errors that differ in ranks, stamps, addresses and long numbers are the same.
    """

    def __init__(self) -> None:
        self._streams: dict[tuple[str, ...], list[tuple[int, LogFact]]] = {}
        self._bare: dict[tuple[str, str], tuple[LogKind, FactTier, str]] = {}
        self._kinds: dict[tuple[object, ...], tuple[FailureCause, LogKind, FactTier]] = {}
        self._same: dict[tuple[str, str], tuple[FailureCause, LogKind, FactTier]] = {}
        self._exact = 0

    def errors_of(self, lines: Sequence[LogLine]) -> Iterator[LogFact]:
        """Yield the errors of a stream; a rank that prints what another has printed has its errors."""
        for line in lines:
            if may_begin_error(line.text):
                break
        else:
            return
        texts = tuple(
            _without_own_numbers(line.text) if "rror" in line.text else line.text for line in lines
        )
        known = self._streams.get(texts)
        if known is None:
            places = {id(line): place for place, line in enumerate(lines)}
            found = [(places[id(fact.line)], fact) for fact in _errors_of(lines, self)]
            if len(self._streams) < _ALIKE_MAX:
                self._streams[texts] = found
            yield from (fact for _place, fact in found)
            return
        for place, fact in known:
            line = lines[place]
            ranks = (line.rank,) if line.rank is not None else ()
            is_line = fact.line.text.strip().startswith(fact.text[:60])
            text = line.text.strip()[:_TEXT_CHARS_MAX] if is_line else fact.text
            yield replace(fact, line=line, text=text, ranks=ranks, node=line.node)

    def bare_fact(self, line: LogLine) -> LogFact | None:
        """Return the error that a line names, which says less than a traceback does."""
        match = _BARE.match(line.text)
        name = match[1].rpartition(".")[2] if match is not None else ""
        if match is None or name in _LAUNCHERS:
            return None
        error = _bare_error(name, match[2][:_TEXT_CHARS_MAX])
        form = name, _OWN_NUMBERS.sub("0", error.message)
        if form not in self._bare:
            alike = _bare_error(*form)
            _cause, kind, tier = self.judge(alike)
            tier = FactTier.WEAK if tier < FactTier.VICTIM else tier
            if len(self._bare) >= _ALIKE_MAX:
                self._bare.clear()
            self._bare[form] = kind, tier, fingerprint(alike)
        kind, tier, print_ = self._bare[form]
        ranks = (line.rank,) if line.rank is not None else ()
        text = error_line(error)[:_TEXT_CHARS_MAX]
        return LogFact(kind, tier, line, text, ranks, line.node, print_=print_, error=error)

    def judge(self, error: ErrorText) -> tuple[FailureCause, LogKind, FactTier]:
        """Return the cause and kind of an error: of those alike after many others, those of the first."""
        same = (error.type_name, _NUMBERS.sub("0", error.traceback))
        if (judged := self._same.get(same)) is not None:
            return judged
        frame = error.traceback.rfind('  File "')
        raised = error.traceback[frame : frame + _TEXT_CHARS_MAX] if frame >= 0 else ""
        text = f"{error.message}\n{raised}".lower()
        words = _kind_words(text.translate(ALIKE_DIGITS))
        form = (error.type_name, words, tuple(_CODES.findall(text)))
        if self._exact >= EXACT_ERRORS_MAX and (known := self._kinds.get(form)):
            return known
        self._exact += 1
        cause = classify(error)
        judged = cause, *kind_of_error(cause, error)
        if len(self._same) < _ALIKE_MAX:
            self._same[same] = judged
        if len(self._kinds) < _ALIKE_MAX:
            self._kinds.setdefault(form, judged)
        return judged


def _errors_of(lines: Sequence[LogLine], judge: _ErrorJudge) -> Iterator[LogFact]:
    """Yield the errors that one stream of lines prints."""
    spread: list[LogLine | None] = []
    texts: list[str] = []
    last: LogLine | None = None
    for line in lines:
        if last is not None and not line.is_of_rank and line.number > last.number + 1:
            spread.append(None)  # other lines stood between
            texts.append("")
        spread.append(line)
        # The form of a rank's prefix, by which `find_errors` prefers the main thread's error.
        texts.append(f"[rank{line.rank}]: {line.text}" if line.is_of_rank else line.text)
        last = line
    for printed in find_errors(texts):
        stated = _line_of(printed, spread)
        if stated is not None and (fact := _error_fact(printed, stated, judge)):
            head = spread[printed.start - 1] if printed.start else None
            is_aside = head is not None and _ASIDE.match(head.text) is not None
            yield replace(fact, is_aside=True) if is_aside else fact


_ASIDE: Final = re.compile(r"Exception ignored in|Exception in thread")


def _line_of(printed: PrintedError, spread: Sequence[LogLine | None]) -> LogLine | None:
    """Return the line in which an error is stated."""
    said = error_line(printed.error)[:60]
    part = spread[printed.start : printed.end]
    stated = (line for line in reversed(part) if line is not None and said and said in line.text)
    return next(stated, None) or next((line for line in part if line is not None), None)


def _error_fact(printed: PrintedError, line: LogLine, judge: _ErrorJudge) -> LogFact | None:
    """Return what an error that a rank printed means, or None for a launcher's summary."""
    error = printed.error
    cause, kind, tier = judge.judge(error)
    if error.type_name == "Exception" and _SPAWNS_WORD.match(error.message):
        return None
    if error.type_name == "Exception" and not error.message and _SPAWN in error.traceback:
        return None  # the child's error follows
    if error.type_name in _LAUNCHERS and cause is not FailureCause.KILLED:
        if error.type_name != "CalledProcessError":
            return None
        kind, tier = LogKind.EXIT_CODE, FactTier.WEAK
    if (error.type_name in _WRAPPERS and kind is LogKind.EXCEPTION) or (
        error.message.startswith(_OF_RANKS) and "\n" not in error.message
    ):
        tier = FactTier.WEAK
    if printed.is_weak and tier in (FactTier.OWN, FactTier.END):
        tier = FactTier.WEAK
    own_tier = tier if printed.is_logged else None
    if not printed.is_own:
        tier = FactTier.WEAK if tier is FactTier.OWN else max(tier, FactTier.VICTIM)
    fact = LogFact(
        kind,
        tier,
        line,
        error_line(error)[:_TEXT_CHARS_MAX],
        (line.rank,) if line.rank is not None else (),
        line.node,
        print_=fingerprint(error),
        error=error,
        own_tier=own_tier,
    )
    names_peer = "peer" in error.message or "peer" in error.traceback
    if (cause is FailureCause.COMMUNICATION and names_peer) and (
        match := _PEER.search("\n".join(read_statements(error)))
    ):
        fact = replace(fact, peer=match[1])
    return fact


_PEER: Final = re.compile(r"by peer \[?([\d.:a-fA-F]+)\]?|Got completion from peer ([^\s<]+)")
