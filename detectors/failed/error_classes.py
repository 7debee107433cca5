"""Says what kind of failure an error is: one table of classes, and the rows by which an error finds its class. Pure.

A class is read from objects and frames, then from words. A library's own type, an errno, the place where
an exception was raised say what failed; words such as "connection refused" don't say by whom. So

- "lost a peer" needs a frame or a name of torch.distributed, gloo, NCCL, MPI or a store;
- a connection that breaks inside the client of something outside is an outage of a service;
- a connection that breaks in the program's own code is an exception, and doubtful: where another rank has
  a cause of its own, this one is its victim (`may_be_peer`);
- an error of data or code (KeyError, ValueError ...) that quotes a device's words stays an exception.

Of a chain the strongest class decides, unless the newest error is decisive itself: what failed while an
error was handled says less than that error. An error that no row knows is an ordinary exception.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from detectors.failed.error_text import (
    LINES_MAX,
    ErrorFrame,
    ErrorPart,
    ErrorText,
    clean_line,
    error_line,
    fingerprint,
    first_cause,
    is_aside,
    parse_error,
    read_parts,
)
from detectors.failed.said_error import FailureCause, SaidAtEnd, SaidError
from detectors.finding import Blame

SAID_CHARS_MAX: Final = 400  # length of the text for people


class ErrorDecision(Enum):
    """What follows from a failure of a class, as far as the class decides it."""

    END = "end"  # no restart helps
    RESTART = "restart"  # whatever came before; the budgets bound it
    RESTART_UNLESS_AGAIN = "restart_unless_again"  # the same error twice at one place ends the job
    RESTART_LATER = "restart_later"  # with a growing pause (recovery.journal.faults); never held against the program
    NONE = "none"  # no failure


@dataclass(frozen=True, slots=True)
class FailureClass:
    """What one class of failures means."""

    decision: ErrorDecision
    some: Blame  # to blame where some ranks have it
    every: Blame  # to blame where every rank has it
    is_outside: bool  # no other checkpoint helps
    source: str


_AGAIN: Final = ErrorDecision.RESTART_UNLESS_AGAIN
_ANEW: Final = ErrorDecision.RESTART

CLASSES: Final[Mapping[FailureCause, FailureClass]] = {
    FailureCause.DO_NOT_RETRY: FailureClass(
        ErrorDecision.END, Blame.PROGRAM, Blame.PROGRAM, False, "exit code 93, as NVIDIA's resiliency extension"
    ),
    FailureCause.OOM_KILLED: FailureClass(
        _ANEW, Blame.MEMORY, Blame.MEMORY, True, "oom_kill of memory.events and /proc/vmstat"
    ),
    FailureCause.HOST_MEMORY: FailureClass(
        _ANEW, Blame.MEMORY, Blame.MEMORY, True, "errno ENOMEM; a full /dev/shm; a loader's worker that vanished"
    ),
    FailureCause.DEVICE_MEMORY: FailureClass(
        _AGAIN, Blame.PROGRAM, Blame.PROGRAM, True, "cudaErrorMemoryAllocation: batch and model decide it"
    ),
    FailureCause.DEVICE: FailureClass(
        _ANEW, Blame.RANK, Blame.RANK, True, "CUDA runtime API: the device reports its own fault"
    ),
    FailureCause.KERNEL_FAULT: FailureClass(
        _ANEW, Blame.RANK, Blame.PROGRAM, True, "NVIDIA's XID catalogue: 13 and 31 are either's fault"
    ),
    FailureCause.KILLED: FailureClass(
        _ANEW, Blame.RANK, Blame.NOBODY, True, "signal(7): the sender of SIGKILL isn't known"
    ),
    FailureCause.CRASHED: FailureClass(
        _ANEW, Blame.RANK, Blame.PROGRAM, False, "signal(7): SIGSEGV, SIGBUS, SIGABRT are the process's own"
    ),
    FailureCause.MIXED_NCCL: FailureClass(
        _AGAIN, Blame.PROGRAM, Blame.PROGRAM, True, "NCCL src/init.cc compares the versions of all ranks"
    ),
    FailureCause.PROGRAM: FailureClass(
        _AGAIN, Blame.PROGRAM, Blame.PROGRAM, False, "Python's types of errors in code; misuse of CUDA and NCCL"
    ),
    FailureCause.STORAGE: FailureClass(
        _AGAIN, Blame.NOBODY, Blame.NOBODY, True, "errno ENOSPC, EDQUOT, EIO, EROFS, ESTALE: shared by nodes as a rule"
    ),
    FailureCause.SERVICE: FailureClass(
        ErrorDecision.RESTART_LATER, Blame.NOBODY, Blame.NOBODY, True, "something outside the job is away for a while"
    ),
    FailureCause.EXCEPTION: FailureClass(
        _AGAIN, Blame.PROGRAM, Blame.PROGRAM, False, "Acme (NSDI'24), table 3: code and data, seldom a machine"
    ),
    FailureCause.EXIT: FailureClass(
        _AGAIN, Blame.PROGRAM, Blame.PROGRAM, False, "an exit code alone says nothing"
    ),
    FailureCause.USER: FailureClass(
        _ANEW, Blame.USER, Blame.USER, True, "SIGTERM, SIGINT ... from somebody else than the launcher"
    ),
    FailureCause.COMMUNICATION: FailureClass(
        _ANEW, Blame.COMMUNICATION, Blame.COMMUNICATION, True, "another rank is gone: a victim's error"
    ),
    FailureCause.STOPPED: FailureClass(
        ErrorDecision.NONE, Blame.NOBODY, Blame.NOBODY, False, "rankmend stopped it"
    ),
}  # fmt: skip
"""The one table of classes: whom a finding blames, what may come again, and where no other checkpoint helps."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How errors of one class are known."""

    pattern: re.Pattern[str]  # in the statement of one error of a chain
    cause: FailureCause
    source: str
    is_any_type: bool = False  # also where the type is one of code or data
    needs_peer: bool = False  # a frame or a name of a library that joins ranks
    needs_loader: bool = False  # a frame of PyTorch's data loader in the rank itself
    needs_frame: re.Pattern[str] | None = (
        None  # a frame that the error needs, where words say little
    )


def _row(
    pattern: str,
    cause: FailureCause,
    source: str,
    *,
    is_any_type: bool = False,
    needs_peer: bool = False,
    needs_loader: bool = False,
    needs_frame: re.Pattern[str] | None = None,
) -> ErrorRow:
    return ErrorRow(
        re.compile(pattern), cause, source, is_any_type, needs_peer, needs_loader, needs_frame
    )


# What only a device, its link or its driver says of itself. Every other error of CUDA's can be code's, a setting's or another job's.
# Sources: CUDA's driver_types.h, cuda.h and nvml.h; HIP's hip_runtime_api.h; "NVRM: Xid (PCI:".
_OWN_WORD: Final = re.compile(
    r"uncorrectable ECC errors?\b(?!(?: count| total)? ?[:=])|[Uu]ncorrectable NVLink error|fallen off the bus|\bXid \(PCI:|GPU is lost|NVMLError_GpuIsLost"
    r"|ECCUncorrectable|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|NvlinkUncorrectable|ECCNotCorrectable|CUDA_ERROR_CONTAINED"
    r"|memory over nvlink or a hardware error|SYSTEM_NOT_READY|system not yet initialized|ErrorSystemNotReady"
    r"|[Dd]river/library version mismatch|NVML/RM version mismatch|LibRmVersionMismatch|unsupported display driver / cuda driver combination"
)


def is_devices_own_word(text: str) -> bool:
    """Return whether a device, its link or its driver reports its own fault.

    An error that names a device may have another cause: a setting hides all devices, another process holds one.
    """
    return _OWN_WORD.search(text) is not None


# Semaphores and shared memory of Python lie in /dev/shm: a full one says the same as a full disk.
_SHM_FRAME: Final = re.compile(
    r"(?:^|/)(?:multiprocess(?:ing)?|billiard|loky/backend)/(?:synchronize|_?semlock|shared_memory|heap)\.py$"
)
_FORKED_FRAME: Final = re.compile(
    r"(?:^|/)(?:torch/utils/data/_utils/worker|torchdata/stateful_dataloader/worker|multiprocess(?:ing)?/(?:pool|process))\.py$"
)
# The first row that matches decides. Cause before consequence: a device error is told inside
# a DistBackendError, and running out of memory inside a "CUDA error:". PyTorch ends each CUDA error with
# "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions", which tells nothing.
ROWS: Final = (
    _row(r"(?m)^KeyboardInterrupt\b", FailureCause.USER, "Python: SIGINT's default handler", is_any_type=True),
    _row(
        r"\bSignalException: Process \d+ got signal: (?:1|2|3|10|12|15)\b|\bSIGTERMException\b",
        FailureCause.USER,
        "torch.distributed.elastic and Lightning raise what a person or a scheduler sent",
    ),
    _row(
        r"(?:psycopg2?|asyncpg)[\w.]{1,40}\bOutOfMemory(?:Error)?\b|out of shared memory\s{1,4}HINT:",
        FailureCause.SERVICE,
        "PostgreSQL's SQLSTATE 53200: the server's memory, or its table of locks",
    ),
    _row(
        r"ray\.exceptions\.OutOfMemoryError|java\.lang\.OutOfMemoryError|running low on memory|OOM when allocating tensor[^\n]* by allocator (?:mklcpu|cpu)\b",
        FailureCause.HOST_MEMORY,
        "Ray's memory monitor, a JVM's heap and TensorFlow's allocator for the host: memory of the host",
    ),
    _row(
        r"(?:CUDA|HIP|NPU|XPU) out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|\bOutOfMemoryError\b(?!: (?:OOM )?command not allowed)"
        r"|CUDA_ERROR_OUT_OF_MEMORY|Cuda failure[^\n]*out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|Resource exhausted: Out of memory|Ran out of memory in memory space|[Aa]ttempting to (?:reserve|allocate) [\d.]+[KMGT]?i?B?\b[^\n]{0,40}\. That was not possible|RESOURCE_EXHAUSTED: (?:Out of memory|[^\n]{0,80}(?:Ran out of memory|[Aa]ttempting to (?:reserve|allocate)|[Aa]llocat(?:e|ing)))|OOM when allocating tensor|(?m:^ResourceExhaustedError\b(?![^\n]*; (?:Disk quota exceeded|No space left on device)))|\bhipErrorOutOfMemory\b|CUDNN_STATUS_ALLOC_FAILED"
        r"|would exceed allowed memory|(?:UR|PI|ZE)_(?:RESULT_)?ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)|\bEL0004: ",
        FailureCause.DEVICE_MEMORY,
        "torch.OutOfMemoryError; cudaErrorMemoryAllocation (2); NCCL WARN; cuBLAS; cuDNN; XLA; TensorFlow's allocators",
    ),
    _row(
        r"(?m:^\w{0,80}MemoryError\b(?!: (?:OOM )?command not allowed))|[Pp]aging file is too small|subprocesses has abruptly died|[Cc]annot allocate memory|can't allocate memory|\[Errno 12\]|\(os error 12\)"
        r"|MPI_ERR_NO_MEM\b|std::bad_alloc|out of shared memory|DataLoader worker[^\n]*killed by signal: (?:Killed|Bus error)"
        r"|</torch_\w+>[^\n]*No space left|No space left[^\n]*</torch_\w+>|/dev/shm/[^\n]*No space left"
        r"|No space left[^\n]*/dev/shm/|unable to (?:open|allocate|resize|mmap)[^\n]*shared memory[^\n]*No space left",
        FailureCause.HOST_MEMORY,
        "Python; numpy; errno ENOMEM; torch DefaultCPUAllocator, DataLoader.cpp and MapAllocator.cpp; NCCL's shm transport",
    ),
    _row(
        r"DataLoader worker \(pid\(s\) [^)]*\) exited unexpectedly"
        r"|(?m:^(?:ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|BrokenPipeError|EOFError)\b(?!: Caught))",
        FailureCause.HOST_MEMORY,
        "torch/utils/data/dataloader.py: a worker that raises passes its error on; one that vanishes was killed",
        needs_loader=True,
    ),
    _row(
        r"\[Errno 28\]",
        FailureCause.HOST_MEMORY,
        "Python's multiprocessing: sem_open and shm_open make files in /dev/shm",
        needs_frame=_SHM_FRAME,
    ),
    _row(
        r"CUDA error: initialization error|cuda runtime error \(3\)",
        FailureCause.PROGRAM,
        "torch's notes on multiprocessing: a process that was forked after CUDA was initialized can't use it",
        needs_frame=_FORKED_FRAME,
    ),
    _row(
        rf"{_OWN_WORD.pattern}|\bXid:? \d+",
        FailureCause.DEVICE,
        "cudaError 214, 220, 721, 802, 803; NVML 15, 18; NVRM log: the device, its link or its driver reports its own fault",
    ),
    _row(
        r"device-side assert triggered|no kernel image is available|invalid configuration argument"
        r"|invalid device (?:ordinal|function|context|symbol)|CUDA error: invalid (?:argument|resource handle|pitch|texture)"
        r"|stream is capturing|during capture|CUDA error: (?:peer access|driver shutting down|too many resources|the requested functionality|operation not permitted)"
        r"|unsupported toolchain|PTX JIT|device kernel image is invalid"
        r"|CU(?:BLAS|DNN|SPARSE|SOLVER|FFT)_STATUS_(?:INVALID_VALUE|NOT_SUPPORTED|BAD_PARAM|UNSUPPORTED|LICENSE)",
        FailureCause.PROGRAM,
        "CUDA runtime API, cudaError 710, 209, 9, 101, 98, 1, 400, 900 ff., 222, 218, 200: asked wrongly by the program",
    ),
    _row(
        r"No (?:CUDA|HIP) GPUs are available|no (?:CUDA|ROCm)-capable device|CUDA-capable device\(s\) is/are busy|devices? (?:are|is) busy or unavailable|CUDA unknown error"
        r"|CUDA error: (?:unknown error|initialization error|unspecified driver error)|Cuda failure[^\n]*unknown error|(?i:failed to initialize nvml)"
        r"|NVMLError_(?!Uninitialized|InvalidArgument|NotSupported|NoPermission|AlreadyInitialized|NotFound|InsufficientSize|LibraryNotFound|FunctionNotFound|VersionMismatch|ArgumentVersionMismatch)"
        r"|[Uu]nable to determine the device handle",
        FailureCause.DEVICE,
        "cudaError 100, 46, 3, 999; NVML: a device that isn't there, or a setting that hides it (`is_devices_own_word`)",
    ),
    _row(
        r"illegal memory access|misaligned address|illegal instruction was encountered|illegal address"
        r"|unspecified launch failure|hardware stack error|CUDA error:|[Cc]uda failure|cuda runtime error|CUDA driver error|\bCUDA_ERROR_(?!OUT_OF_MEMORY)\w+"
        r"|CUDNN_STATUS_|CUBLAS_STATUS_|CUSPARSE_STATUS_|CUSOLVER_STATUS_|cuFFT error|CUFFT_\w+|HIP error:|hipError\w+|ncclUnhandledCudaError|(?:UR|PI|ZE)_(?:RESULT_)?ERROR_DEVICE_LOST"
        r"|cudaGetDeviceCount\(\)|Found no NVIDIA driver|NVIDIA driver on your system is too old|driver version is insufficient",
        FailureCause.KERNEL_FAULT,
        "CUDA runtime API, cudaError 700, 716, 715, 719, 714, 35; cuDNN; cuBLAS: code, setting, silicon or driver; XID 13 and 31 are either's fault",
    ),
    _row(
        r"Mismatched NCCL version detected",
        FailureCause.MIXED_NCCL,
        "NCCL src/init.cc, initTransportsRank: versions of all ranks of a communicator are compared",
    ),
    _row(
        r"ncclInvalid(?:Usage|Argument)|Duplicate GPU detected|op\.preamble\."
        r"|Detected mismatch between collectives|MPI_ERR_(?:BUFFER|COUNT|TYPE|TAG|COMM|RANK|REQUEST|ROOT|GROUP|OP|TOPOLOGY|DIMS|ARG|TRUNCATE)\b",
        FailureCause.PROGRAM,
        "NCCL; gloo tcp/pair.cc when sizes differ; torch with TORCH_DISTRIBUTED_DEBUG=DETAIL; MPI-4, 9.4: classes of wrong arguments",
    ),
    _row(
        r"\[OS error (?:28|122|5|30|116): E[A-Z]+",
        FailureCause.STORAGE,
        "tensorstore, below orbax: it raises ValueError",
        is_any_type=True,
    ),
    _row(
        r"\[Errno (?:28|37|122|5|30|116|70|74|117|126|127|128|129)\](?! An error occurred \(\w+\) when calling)|\[Errno 5(?:12|2\d)\] Unknown error"
        r"|No locks available|[Nn]o space left on device|[Dd]isk quota exceeded|[Ss]tale (?:NFS )?file handle|MPI_ERR_(?:NO_SPACE|QUOTA|IO|READ_ONLY)\b"
        r"|[Rr]ead-only file system|[Ii]nput/output error|\(os error (?:28|122|5|30|116|117)\)|not enough space on the disk"
        r"|PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+"
        r"|disk I/O error|(?:database or|[Ll]ocal) disk is full|basic_ios::clear: iostream error|\[Errno (?:103|107|108|110|112|121)\][^\n]*: '/|; (?:Transport endpoint is not connected|Cannot send after transport endpoint shutdown|Host is down|Remote I/O error|Structure needs cleaning|Communication error on send)"
        r"|\d requested and \d+ written|write\(\): fd \d+ failed|errno ?= ?(?:28|122)\b",
        FailureCause.STORAGE,
        "errno ENOSPC, EDQUOT, EIO, EROFS, ESTALE, ECOMM (BeeGFS), EBADMSG, EUCLEAN, keys of Kerberos (126 to 129), NFS's own (512, 520 ff.); "
        "torch inline_container.cc (pytorch#76108, #10577: the disk was full); numpy tofile; MPI-IO",
    ),
    _row(
        r"[Cc]onnection (?:closed by peer|reset by peer|refused|was likely closed|timed out)"
        r"|[Bb]roken pipe|remote process exit|unhandled system error|ncclRemoteError|ncclSystemError|ncclInternalError"
        r"|Timed out waiting \d+ ?ms|wait timeout after|Socket Timeout|before timing out"
        r"|client socket has (?:timed out|failed)|Application timeout caused pair closure"
        r"|connectFullMesh failed|in store based barrier|Stop_waiting response|failed to listen|EADDRINUSE|[Nn]o route to host|Network is (?:unreachable|down)|Host is down|Transport endpoint is not connected|Software caused connection abort|barrier timed out|Barrier timed out"
        r"|Timeout waiting for key|communicator was aborted"
        r"|(?m:^(?:\w+\.)*XlaRuntimeError: (?:DEADLINE_EXCEEDED|UNAVAILABLE|ABORTED|CANCELLED)\b)|Heartbeat request to coordination service failed|heartbeat timeout|Heartbeat monitor timed out|(?:recv|send)\w{0,20} failed on SocketImpl|failed to recv, got 0 bytes|HorovodInternalError|Horovod has been shut down|distributed service detected fatal errors|the remote task has failed|task names: /job:|MPI_ERR_\w+|monitoredBarrier|Endpoint timeout|reset by remote peer",
        FailureCause.COMMUNICATION,
        "gloo 2.13 rendezvous/context.cc, pair.cc:537 and :553, unbound_buffer.cc:78 and :129 (a rank was killed, raised, "
        "hung); torch TCPStore and socket.cpp; NCCL; NCCL watchdog (Megatron-LM#935); errno; JAX; MPI-4 ULFM",
        needs_peer=True,
    ),
    _row(
        r"(?m)^(?:[\w.]+\.)?(?:Dist(?:Backend|Network|Store)?Error|Rendezvous\w*Error|ConnectionError"
        r"|Connection(?:Reset|Refused|Aborted)Error|BrokenPipeError|TimeoutError|timeout|gaierror)\b",
        FailureCause.COMMUNICATION,
        "torch.distributed exceptions; Python's sockets below them",
        needs_peer=True,
    ),
    _row(
        r"(?m)^(?:SyntaxError|IndentationError|TabError|NameError|UnboundLocalError|TypeError"
        r"|AttributeError|NotImplementedError)\b",
        FailureCause.PROGRAM,
        "Python: code that is wrong wherever it runs (Acme, NSDI'24: 620 type, 67 attribute errors)",
        is_any_type=True,
    ),
)  # fmt: skip

_OF_CODE_OR_DATA: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:KeyError|ValueError|IndexError|LookupError|TypeError|AttributeError|NameError|UnboundLocalError"
    r"|AssertionError|FileNotFoundError|NotADirectoryError|IsADirectoryError|FileExistsError|PermissionError"
    r"|ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError|JSONDecodeError|Unicode\w*Error|StopIteration"
    r"|ZeroDivisionError|OverflowError|FloatingPointError|NotImplementedError|RecursionError|UnpicklingError"
    r"|ValidationError|ConfigError|ParserError|YAMLError|BadZipFile|UnidentifiedImageError)\b"
)
# Libraries that join the ranks of a job.
_PEER_FRAME: Final = re.compile(
    r"(?:^|/)(?:torch/distributed/(?!checkpoint/)|torch/nn/parallel/distributed|torch/csrc/distributed|mpi4py/|horovod/|deepspeed/comm/|megatron/core/"
    r"(?:parallel_state|pipeline_parallel|tensor_parallel|distributed)|byteps/|pygloo/|cupyx/distributed/|cupy/cuda/nccl"
    r"|jax/_src/(?:distributed|clusters)|(?:paddle|dgl|vllm|sglang|mindspore|oneflow|torch_npu|torch_xla|habana_frameworks|torch_geometric|colossalai)/(?:\w+/){0,3}distributed|accelerate/utils/operations|torchft/|ray/util/collective/)"
)
_PEER_NAME: Final = re.compile(
    r"\bgloo\b|\bgloo/|[Nn]ccl[A-Z]\w+|\bNCCL\b|\bRCCL\b|\bHCCL\b|ProcessGroup|TCPStore|\bc10d\b|\bDist(?:Backend|Network|Store)?Error\b"
    r"|torch\.distributed\.\w*(?:Error|Timeout)|Watchdog caught collective|\bMPI\b|\bMPI_\w+|\bUCX\w*|\bucp_\w+|coordination service|/job:\w+/(?:replica:\d+/)?task:\d+|client socket has (?:timed out|failed)"
    r"|torch/csrc/distributed|Horovod|HorovodInternalError|SocketImpl\(|JAX distributed service|Heartbeat monitor timed out|\bRendezvous\w*Error\b|monitoredBarrier|MultiProcessing rendezvous"
)
_LOADER_FRAME: Final = re.compile(
    r"(?:^|/)(?:torch/utils/data/dataloader|torchdata/stateful_dataloader/stateful_dataloader)\.py$"
)
_WORKER_FRAME: Final = re.compile(
    r"(?:^|/)(?:torch/utils/data/_utils/(?:worker|fetch)|torchdata/stateful_dataloader/worker)\.py$"
)
STANDARD_LIBRARY: Final = re.compile(
    r"(?:^<frozen|/lib(?:64)?/python\d[\d.]*/)(?!site-packages|dist-packages)"
)
PACKAGE: Final = re.compile(r"/(?:site|dist)-packages/")
# A connection to a process that this one has started.
_OWN_PROCESS: Final = re.compile(
    r"(?:^|/)(?:(?:multiprocess(?:ing)?|billiard)/\w+|subprocess)\.py$"
)
# Packages whose broken connections say nothing about something outside: they hold ranks or workers together.
_JOINS_PROCESSES: Final = re.compile(
    r"/(?:site|dist)-packages/(?:torch|torchdata|lightning|pytorch_lightning|lightning_fabric|accelerate|transformers|deepspeed|megatron"
    r"|colossalai|ray|joblib|multiprocess|billiard|mpi4py|horovod|jax|jaxlib|flax|numpy|pandas|PIL|cv2|tqdm|datasets/utils/py_utils"
    r"|ffmpeg\w*|imageio\w*|moviepy|skvideo|vidgear|matplotlib|pydub|decord|av|filelock|portalocker|fasteners|subprocess32|pexpect|ptyprocess|zmq|loguru|rich|click|hydra|fire|absl)(?:/|\.py$)"
)
CLIENT: Final = re.compile(
    r"/(?:requests|urllib3|httpx|httpcore|aiohttp|botocore|boto3|aiobotocore|awscrt|s3transfer|s3torchconnector(?:client)?|s3fs|gcsfs|adlfs|ossfs|oss2|minio|google/(?:api_core|auth|cloud|resumable_media)"
    r"|azure|huggingface_hub|modelscope/hub|wandb(?:_gql|_graphql)?|mlflow|neptune(?:_scale|_api)?|comet_ml|clearml|swanlab|aim|trackio|redis|pymongo|motor|elasticsearch|opensearchpy"
    r"|psycopg(?:2|_pool)?|asyncpg|pymysql|MySQLdb|mysql/connector|sqlalchemy|cassandra|grpc|kafka|confluent_kafka|pika|kombu|paramiko|hvac|consul|etcd3?|kazoo|kubernetes"
    r"|websockets?|tensorboard_reducer|slack_sdk|fsspec/implementations/http|smart_open|hdfs|pyhdfs|webhdfs|optuna/storages)/"
    r"|(?:^|/)(?:http/client|urllib/request|urllib/error|ssl|smtplib|ftplib|imaplib|poplib|xmlrpc/client)\.py$"
)
_CLIENT_NAME: Final = re.compile(
    r"\b(?:requests|urllib3|httpx|httpcore|aiohttp|pycurl|botocore|boto3|google\.api_core|google\.auth|google\.cloud|azure\.core|huggingface_hub|wandb|mlflow|neptune"
    r"|comet_ml|clearml|redis|pymongo|elasticsearch|elastic_transport|psycopg2?|asyncpg|pymysql|MySQLdb|sqlalchemy|cassandra|grpc|kafka|pika|kazoo|kubernetes\.client|websockets?)"
    r"\.[\w.]+|HTTPS?ConnectionPool\(|HTTPS?Connection\(|\burlopen error\b|_InactiveRpcError|MlflowException|\bCommError\b|HfHubHTTPError|\bAioRpcError\b"
)
# An outage, whoever reports it.
_OUTAGE: Final = re.compile(
    r"\b(?:429|50[0-9]|52[0-9]) (?:Server Error|Client Error|Bad Gateway|Service (?:Temporarily )?Unavailable|Gateway Time-?out|Internal Server Error|Too Many Requests)"
    r"|\b(?:HTTP|[Ss]tatus(?: ?code)?|code|error)[ :=/'\"]{0,4}(?:1\.1 |2 )?(?:429|50[0-4]|52[0-9])\b|too many (?:429|5\d\d) error responses"
    r"|(?:Bad Gateway|Service (?:Temporarily )?Unavailable|Gateway Time-?out|Internal Server Error|Too Many Requests)\b"
    r"|Max retries exceeded|Name or service not known|[Tt]emporary failure in name resolution|nodename nor servname|No address associated with hostname"
    r"|\bgaierror\b|NameResolutionError|getaddrinfo failed|Network is unreachable|RemoteDisconnected|Remote end closed connection|IncompleteRead|ChunkedEncodingError"
    r"|ProtocolError|ProxyError|\bSSLEOFError\b|EOF occurred in violation of protocol|SSL: UNEXPECTED_EOF|handshake operation timed out"
    r"|\b\w*(?:Connect|Connection|Read|Pool|Request|Write)Timeout(?:Error)?\b|\bServerDisconnectedError\b|\bClient(?:Connector|OS|Payload)\w*Error\b|ServerTimeoutError"
    r"|EndpointConnectionError|ConnectionClosedError|\bSlowDown\b|RequestTimeout\b|ServiceUnavailable\b|ThrottlingException|RequestLimitExceeded|InternalError\) when calling"
    r"|ServerSelectionTimeoutError|AutoReconnect|NetworkTimeout|NotPrimaryError|NoBrokersAvailable|KafkaTimeoutError|BusyLoadingError|ClusterDownError|MasterNotFoundError"
    r"|could not connect to server|connection to server [^\n]{0,80} failed|could not translate host name|server closed the connection unexpectedly"
    r"|database system is (?:starting up|shutting down)|terminating connection due to administrator command|connection slots are reserved|too many (?:clients|connections)"
    r"|Lost connection to MySQL|Can't connect to MySQL|Unknown MySQL server host|MySQL server has gone away|Lock wait timeout exceeded"
    r"|StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED)|\bDeadlineExceeded\b|\bRetryError\b|has timed out after|[Tt]imed out|[Tt]imeout"
    r"|Connection (?:refused|reset|aborted|closed|timed out|was closed|error|lost)|[Cc]onnection (?:has been|was|is) (?:unexpectedly )?(?:closed|reset|lost|terminated)|[Cc]onnection error|couldn't connect|[Cc]an(?:not|'t) connect|[Ff]ailed to connect|[Uu]nable to connect"
    r"|No route to host|[Bb]roken pipe|All connection attempts failed|Server disconnected|Connect call failed|Cannot connect to host|\bConnect(?:ion)?Error\b|NewConnectionError"
    r"|LocalEntryNotFoundError|(?i:temporar(?:il)?y unavailable)|CredentialRetrievalError|SSH protocol banner|\bMailbox\w*Error\b|HandleAbandonedError|Wandb(?:Attach|Service)\w{0,40}Error|LeaderNotAvailable|NodeNotReady|SessionExpired"
    r"|ErrorCode:(?:OperationTimedOut|ServerTimeout|InternalError)|\((?:OperationTimedOut|ServerTimeout|InternalError)\) |[Ss]tatus code', (?:429|50[0-4])\b"
    r"|REQUEST_LIMIT_EXCEEDED|TEMPORARILY_UNAVAILABLE|AWS_(?:IO_SOCKET_TIMEOUT|IO_SOCKET_CLOSED|IO_DNS_QUERY_FAILED|ERROR_HTTP_CONNECTION_CLOSED)|command not allowed when used memory"
)
# Said by programs of their own, too: these need a client's frame or name.
_PLAIN_OUTAGE: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:TimeoutError|timeout|ConnectionError|Connection(?:Reset|Refused|Aborted)Error|BrokenPipeError|EOFError|ProtocolError)\b"
)
# Said only of something outside, whatever library raised it.
_SURE_OUTAGE: Final = re.compile(
    r"\b(?:429|50[0-9]|52[0-9]) (?:Server Error|Bad Gateway|Service (?:Temporarily )?Unavailable|Gateway Time-?out|Internal Server Error|Too Many Requests)"
    r"|\b429 Client Error|returned (?:error|status)(?: code)?:? (?:429|5\d\d)\b|[Bb]ad [Gg]ateway, 50\d|[Rr]educe your request rate|\bServerBusy\b|[Tt]he server is busy"
    r"|[Aa]n error occurred \((?:5\d\d|SlowDown|ServiceUnavailable\w*|Service Unavailable|Internal(?:Error|Failure|Server\w+)|RequestTimeout\w*|Throttl\w+|TooManyRequests\w*|RequestLimitExceeded)\) when calling"
    r"|[Ww]e encountered an internal error[.,] [Pp]lease try again"
    r"|(?:[Ff]ailed to|[Cc]an(?:no|')t|[Cc]ould not|[Uu]nable to) (?:connect to|contact|reach)[^\n]{0,20} ?(?:[Ll]icen[sc]e|[Tt]oken) (?:server|manager)|\b[Ll]icen[sc]e (?:server|manager|daemon)[\w ]{0,20}(?: down| not | unreachable| unavailable)"
    r"|[Ee]rror communicating with (?:the )?\w{1,40} (?:process|service|server|backend)\b"
    r"|libcurl code \d+|curlCode: \d+|[Mm]etadata (?:server|service) (?:is )?unavailable|[Ii]nternet connection is on\b"
    r"|(?m:OperationalError\)?:? \(?.{0,40}database (?:table )?is locked)"
    r"|HTTPS?ConnectionPool\([^\n]*(?:Max retries|[Tt]imed out)|[Tt]emporary failure in name resolution|Name or service not known|NameResolutionError"
    r"|ServerSelectionTimeoutError|EndpointConnectionError|NoBrokersAvailable|(?m:^(?:[\w.]+\.)?(?:gaierror|URLError|RemoteDisconnected|HfHubHTTPError(?!: 4(?!29)\d\d\b))\b)"
    r"|could not connect to server|database system is (?:starting up|shutting down)|server closed the connection unexpectedly|Lost connection to MySQL|MySQL server has gone away"
    r"|HTTP Error (?:429|5\d\d)\b|<HttpError (?:429|5\d\d)\b|StatusCode\.UNAVAILABLE|FSTimeoutError|(?:couldn't connect to|Couldn't reach) '?https?://"
)
# Said by an installed package, or with an address, whoever the client is: it had no answer, or one that asks to come again.
_NO_ANSWER: Final = re.compile(
    r"\b(?:429|50[0-9]|52[0-9]) (?:GET|POST|PUT|PATCH|DELETE|HEAD|[Bb]ackend)\b|(?i:\b(?:error code|status(?:[_ ]?code)?|response_status|http(?: error)?)['\"]?[ :=]{1,4}(?:429|50[0-9]|52[0-9])\b)"
    r"|\b(?:429|50[0-9]|52[0-9]) (?:Server Error|Bad Gateway|Service (?:Temporarily )?Unavailable|Gateway Time-?out|Internal Server Error|Too Many Requests)"
    r"|(?i:rate.?limit(?:ed| (?:is )?(?:exceeded|reached))|too many (?:requests|users|connections)|please slow down|reduce (?:your )?request rate|(?:could not|couldn't) resolve host|failure in name resolution|error sending request|libcurl code \d+|curlcode: \d+)"
    r"|(?i:timeout was reached|connection (?:error(?! codes?\b)|exception|refused|reset|timed out|aborted|closed|lost)|failed to connect|(?:cannot|can't|could not|couldn't|unable to) (?:connect to|reach (?:the )?(?:server|host|hub|service|endpoint|https?:))|(?:host|network|server|service|endpoint) (?:is )?unreachable|network is down|NETWORK_CONNECTION)"
    r"|SlowDown\b|SLOW_DOWN\b|(?i:(?:service|server|cluster|broker)(?: is| was)?(?: temporarily| currently)? (?:unavailable|busy|overloaded)|returned unavailable|read timed out|request timed out|SSL SYSCALL error)"
    r"|pipe:(?:curl|wget|aws|gsutil|gcloud|s3cmd|rclone|azcopy)[^\n]{0,300}\bexit (?:4|5|6|7|18|28|35|52|56)\b"
)
_ADDRESS: Final = re.compile(
    r"\b(?:https?|wss?|s3a?|gs|gcs|abfss?|wasbs?|oss|hdfs|redis|mongodb|postgres\w*|mysql|amqp|grpc|ldap|ssh|sftp)://(?!(?:localhost|127\.|\[::1\]))"
)
# The service has answered, and the program asked for the wrong thing, or may not ask.
_REFUSED_BY_SERVICE: Final = re.compile(
    r"\b(?:400|401|402|403|404|405|406|409|410|412|413|416|422)\b (?:Client Error|Precondition Failed|Unauthorized|Forbidden|Not Found|Bad Request)|HTTP Error 4(?!29)\d\d|\((?:401|403|404)\)|AccessDenied|\b(?:Unauthorized|Forbidden)\w*Error|InvalidAccessKeyId|NoCredentials"
    r"|NoSuch(?:Key|Bucket)|SignatureDoesNotMatch|ExpiredToken|GatedRepo|RepositoryNotFound|RevisionNotFound|UsageError|AuthenticationError|(?i:api[_ -]?key)|password authentication failed"
    r"|\bBadRequestError\b|\bRequestError\(4(?!29)\d\d\b|(?:database|role) \"[^\"\n]{1,80}\" does not exist|no pg_hba\.conf entry"
    r"|UndefinedTable|ProgrammingError|IntegrityError|certificate verify failed: (?:self|unable)|Invalid(?:Schema|URL)|MissingSchema|UnsupportedProtocol|LocationParseError"
)
# The program or its setting can't reach it at any time, however often a client tries.
_NEVER_REACHED: Final = re.compile(
    r"certificate verify failed: (?:self|unable)|Tunnel connection failed: 40[37]\b"
)
_SOCKET_ERROR: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:ConnectionError|Connection(?:Reset|Refused|Aborted)Error|BrokenPipeError|TimeoutError|timeout|OSError: \[Errno (?:101|104|110|111|112|113)\])(?!\w)"
)
# Names that clients give to their errors, whichever client it is.
_NETWORK_TYPE: Final = re.compile(
    r"(?m)^[\w.]{0,200}(?:Connect|Connection|Timeout|Unavailable|Disconnected|ServerError|NetworkError|RequestError|HTTPError|HttpError)\w{0,64}(?::|$)"
)
_FRAMES_MAX: Final = 24  # looked at from the raise outwards

_DECISIVE: Final = frozenset(
    {
        FailureCause.USER,
        FailureCause.HOST_MEMORY,
        FailureCause.DEVICE_MEMORY,
        FailureCause.DEVICE,
        FailureCause.KERNEL_FAULT,
        FailureCause.MIXED_NCCL,
    }
)
_STRENGTH: Final = {cause: place for place, cause in enumerate(FailureCause)}


_BROKEN: Final = re.compile(
    rf"{_SOCKET_ERROR.pattern}|[Cc]onnection (?:was )?(?:closed|reset) by peer", _SOCKET_ERROR.flags
)


@lru_cache(maxsize=128)  # all ranks print one error, and each judge of it needs its class
def classify(error: ErrorText) -> FailureCause:
    """Return the class of an error; one that says nothing takes that of what it came from."""
    if (killed := _kill_of_child(error)) is not None:
        return killed
    parts = read_parts(error)
    if any(_WORKER_ENDED.search(part.statement) for part in parts):
        parts = [part for part in parts if not _WORKER_GONE.search(part.statement)] or parts
    is_offline = _is_offline(parts)
    found = [_class_of(part, is_offline=is_offline) for part in parts]
    newest, is_certain = found[0]
    if newest in _DECISIVE or (is_certain and newest is FailureCause.PROGRAM):
        return newest
    strong = [cause for cause, is_strong in found if is_strong]
    return min(strong, key=_STRENGTH.__getitem__) if strong else newest


# torch's DataLoader.cpp tells how a worker ended, dataloader.py behind it only that it is gone (facebookresearch/pycls#146).
_WORKER_ENDED: Final = re.compile(
    r"DataLoader worker \(pid \d+\) (?:is killed by signal|exited unexpectedly with exit code)"
)
_WORKER_GONE: Final = re.compile(r"DataLoader worker \(pid\(s\) [^)]*\) exited unexpectedly")
# A setting, such as HF_HUB_OFFLINE, and no outage. Sources: huggingface_hub/file_download.py, datasets/config.py.
_OFFLINE: Final = re.compile(
    r"outgoing traffic has been disabled|OfflineModeIsEnabled|(?i:offline mode is enabled)"
)
_MET_NETWORK: Final = re.compile(r"Max retries exceeded|\[Errno -?\d+\]|[Tt]imed out")


def _is_offline(parts: Sequence[ErrorPart]) -> bool:
    """Return whether the program may ask nobody outside, and has asked nobody."""
    statements = [part.statement for part in parts]
    is_set = any(_OFFLINE.search(text) for text in statements)
    return is_set and not any(_MET_NETWORK.search(text) for text in statements)


def may_be_peer(error: ErrorText) -> bool:
    """Return whether a broken connection of the program's own may lead to another rank."""
    parts = read_parts(error)
    if classify(error) is not FailureCause.EXCEPTION:
        return False
    return any(
        _SOCKET_ERROR.search(_first_line(part))
        and not any(
            _LOADER_FRAME.search(frame.path) or _WORKER_FRAME.search(frame.path)
            for frame in part.frames
        )
        for part in parts
    )


# Errors that the text of the program alone decides: the same at each start, whatever it reads.
_OF_TEXT: Final = re.compile(
    r"^(?:SyntaxError|IndentationError|TabError|NameError|UnboundLocalError|ModuleNotFoundError|ImportError)\b"
)
_OF_CODE: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:TypeError|AttributeError|NotImplementedError|KeyError|ValueError|IndexError|LookupError|AssertionError|StopIteration"
    r"|ZeroDivisionError|OverflowError|FloatingPointError|RecursionError|ValidationError|ArgumentError|\w*Config\w*(?:Error|Exception)"
    r"|Interpolation\w*Error|YAMLError|ScannerError|ParserError)\b"
)
# What PyTorch says of tensors that don't fit each other. Sources: aten/src/ATen/native/LinearAlgebra.cpp,
# ExpandUtils.h, TensorIterator.cpp, Convolution.cpp; torch/csrc/autograd/engine.cpp.
_OF_SHAPES: Final = re.compile(
    r"^RuntimeError: (?:mat1 and mat2 |The size of tensor a |The expanded size of the tensor |Expected all tensors to be on the same device"
    r"|[Ee]xpected (?:scalar type|object of|input|\d+D|a ).{0,60}but |Sizes of tensors must match|shape '\[[-\d, ]*\]' is invalid for input"
    r"|Given groups=|Given normalized_shape|element 0 of tensors does not require grad|size mismatch|Tensors must have same number of dimensions"
    r"|Boolean value of Tensor|a leaf Variable that requires grad|Trying to backward through the graph a second time|stack expects each tensor)"
)
# As argparse says, which ends with code 2. Source: Lib/argparse.py.
_USAGE: Final = re.compile(
    r"^\S+\.py: error: (?:unrecognized arguments|the following arguments are required|argument |ambiguous option|one of the arguments|too few arguments)"
    r"|^Error: (?:No such (?:option|command)|Missing (?:argument|option|parameter)|Invalid value for|Got unexpected extra argument|Option '[^']+' (?:requires|does not))"
)
_OF_FILES: Final = re.compile(
    r"(?m)^(?:[\w.]+\.)?(?:OSError|IOError|EnvironmentError|FileNotFoundError|FileExistsError|PermissionError|NotADirectoryError|IsADirectoryError"
    r"|BlockingIOError|ChildProcessError|ProcessLookupError|InterruptedError|Connection\w*Error|BrokenPipeError|TimeoutError|timeout|gaierror)\b|\[Errno \d+\]"
)
# As hydra refuses an override, without a traceback. Source: hydra/_internal/config_loader_impl.py, utils.py.
_HYDRA: Final = re.compile(
    r"^(?:Could not (?:override|append|delete) |Key '[^']+' is not in struct|In '[^']+': Could not find|Primary config |You must specify '|Error merging |Cannot find primary config|Ambiguous value for argument|mismatched input |no viable alternative|token recognition error|LexerNoViableAltException)"
)
# What a node can lack. Source: glibc's elf/dl-load.c and dl-lookup.c.
_OF_LIBRARIES: Final = re.compile(
    r"cannot open shared object file|undefined symbol|symbol lookup error|DLL load failed|invalid ELF header|wrong ELF class|file too short"
    r"|failed to map segment|cannot allocate memory in static TLS|cannot enable executable stack|version `[\w.]+' not found|\.so(?:\.\d+)*\b"
)
_OF_MACHINES: Final = re.compile(
    r"(?i)\b(?:cuda|cudnn|nccl|gpus?|nvml|nvidia|hip|rocm|driver|devices?)\b"
)
# What was read may be whole at the next start: a path that a later mount has, an empty file.
_OF_INPUT: Final = re.compile(
    r"(?:^|[\s'\"(=:])(?:~|\.{0,2})/[\w.-]+|\b\w+://|: (?:''|\"\"|b'')$|char 0\)|(?i:\bempty\b|\bgot num_samples=0\b|\bno (?:files?|shards?|samples?|data)\b)"
)


def comes_again(error: ErrorText, *, has_state: bool) -> bool:
    """Return whether an error that every rank had before its first step comes again at each start.

    ``has_state``: the ranks began from a checkpoint, which may be what is wrong: then only an error in the program's
    text does. A library that can't be loaded, an error of files and one that names a path or empty input never do: those can be a
    node's or a storage's.
    """
    parts = read_parts(error)
    statements = [part.statement for part in parts]
    first = _first_line(parts[0])
    if any(_OF_FILES.search(text) or _OF_LIBRARIES.search(text) for text in statements):
        return False
    if _OF_TEXT.search(first):
        return True
    if has_state or classify(error) not in (FailureCause.PROGRAM, FailureCause.EXCEPTION):
        return False
    if any(
        _OUTAGE.search(text) or _OF_MACHINES.search(text) or _OF_INPUT.search(text)
        for text in statements
    ):
        return any(pattern.search(first) for pattern in (_OF_SHAPES, _USAGE, _HYDRA))
    patterns = (_OF_CODE, _OF_SHAPES, _USAGE, _HYDRA)
    return any(pattern.search(first) for pattern in patterns)


def _class_of(part: ErrorPart, *, is_offline: bool) -> tuple[FailureCause, bool]:
    """Return the class of one error of a chain, and whether it says more than Python's type."""
    statement, frames = part.statement, part.frames[:_FRAMES_MAX]
    is_of_data = _OF_CODE_OR_DATA.search(_first_line(part)) is not None
    is_peer = _is_of_peers(statement, frames)
    is_loader = _is_of_loader(frames) or "DataLoader worker (pid" in statement
    for row in ROWS:
        if (is_of_data and not row.is_any_type) or (row.needs_peer and not is_peer):
            continue
        if (row.needs_loader and not is_loader) or not row.pattern.search(statement):
            continue
        needed = row.needs_frame
        if needed and not any(needed.search(frame.path) for frame in frames):
            continue
        return row.cause, not row.is_any_type or row.cause is FailureCause.USER
    is_asked = is_of_data and not _is_clients_own(statement, frames)
    if not (is_peer or is_asked or is_offline) and _is_outage(statement, frames):
        return FailureCause.SERVICE, True
    if not is_peer and _MOUNT_IS_GONE.search(_first_line(part)) and not _is_of_sockets(frames):
        return FailureCause.STORAGE, True
    if _NO_WAY.search(_first_line(part)):
        return FailureCause.COMMUNICATION, True
    return FailureCause.EXCEPTION, False


def _is_clients_own(statement: str, frames: Sequence[ErrorFrame]) -> bool:
    """Return whether an error with a type of data is a client's word that it had no answer: Transformers 4 and comet_ml raise a ValueError."""
    if "nternet connection is on" in statement:
        return True
    is_clients = bool(frames) and CLIENT.search(frames[0].path) is not None
    return is_clients and _NO_ANSWER.search(statement) is not None


# What a file's reads and writes say once its mount is gone, but sockets, too: then a frame of theirs stands behind it.
_MOUNT_IS_GONE: Final = re.compile(
    r"^(?:OSError|IOError|BrokenPipeError): \[Errno (?:107|108|112|121)\]"
)
# ENETDOWN, ENETUNREACH, EHOSTUNREACH: the kernel knows no way to the other host. No program brings that about.
# asyncio puts the errors of several addresses into one.
_NO_WAY: Final = re.compile(r"^OSError: (?:Multiple exceptions: )?\[Errno (?:100|101|113)\]")
_OF_SOCKETS: Final = re.compile(
    r"(?:^|/)(?:socket|ssl|socketserver|selectors|asyncio/\w+|multiprocessing/connection)\.py$"
)


def _is_of_sockets(frames: Sequence[ErrorFrame]) -> bool:
    """Return whether a socket may have failed; without any frame nobody knows."""
    return not frames or any(
        _OF_SOCKETS.search(frame.path) or CLIENT.search(frame.path) for frame in frames
    )


def _first_line(part: ErrorPart) -> str:
    lines = (
        line for line in part.statement.split("\n") if line and not line.startswith("Traceback (")
    )
    return next(lines, "")


def _is_of_peers(statement: str, frames: Sequence[ErrorFrame]) -> bool:
    """Return whether an error is about the ranks' connections: torch.distributed, gloo, NCCL, MPI or a store."""
    if _PEER_NAME.search(statement):
        return True
    if (
        "in DataLoader worker process" in statement
    ):  # the worker's connection, whatever the rank ran
        return False
    is_socket = _SOCKET_ERROR.search(statement.partition("\n")[0]) is not None
    for frame in frames:
        if _PEER_FRAME.search(frame.path):
            return True
        if CLIENT.search(frame.path) or (is_socket and _is_own_code(frame.path)):
            return False
    # Without a frame nobody knows whose connection broke. To take it for a peer's costs no node and no job.
    is_broken = not frames and _BROKEN.search(statement) is not None
    return is_broken and not (_SURE_OUTAGE.search(statement) or _CLIENT_NAME.search(statement))


def _is_own_code(path: str) -> bool:
    """Return whether a file is the program's: below DDP's forward, its own connections break, too."""
    return not (STANDARD_LIBRARY.search(path) or PACKAGE.search(path) or "torch/" in path)


def _is_of_loader(frames: Sequence[ErrorFrame]) -> bool:
    """Return whether the rank read from its workers: a worker's own error has other frames."""
    paths = [frame.path for frame in frames]
    is_worker = any(_WORKER_FRAME.search(path) for path in paths)
    is_dataset = any(CLIENT.search(path) for path in paths)
    return not is_worker and not is_dataset and any(_LOADER_FRAME.search(path) for path in paths)


def _is_outage(statement: str, frames: Sequence[ErrorFrame]) -> bool:
    """Return whether something outside the job is away: told by the object that failed, not by words alone."""
    is_sure = _SURE_OUTAGE.search(statement) is not None
    is_refused = _REFUSED_BY_SERVICE.search(statement) is not None and not is_sure
    if is_refused or _NEVER_REACHED.search(statement):
        return False
    if is_sure:
        return True
    has_address = _ADDRESS.search(statement) is not None
    if _NO_ANSWER.search(statement) and (has_address or _is_of_package(frames)):
        return True
    is_client = _CLIENT_NAME.search(statement) or any(CLIENT.search(frame.path) for frame in frames)
    first = statement.partition("\n")[0]
    if is_client:
        patterns = (_OUTAGE, _NETWORK_TYPE)
        is_told = any(pattern.search(statement) for pattern in patterns)
        return is_told or _PLAIN_OUTAGE.search(first) is not None
    if not _is_in_package(frames):
        return False
    is_network = _NETWORK_TYPE.search(first) is not None and _OUTAGE.search(statement) is not None
    return is_network or _SOCKET_ERROR.search(first) is not None


def _is_of_package(frames: Sequence[ErrorFrame]) -> bool:
    """Return whether an installed package or its compiled code raised it, and none that joins processes."""
    if not frames:
        return False
    path = frames[0].path
    if PACKAGE.search(path):
        return _JOINS_PROCESSES.search(path) is None
    return path.endswith((".pyx", ".pxi"))


def _is_in_package(frames: Sequence[ErrorFrame]) -> bool:
    """Return whether an installed package, no library that joins processes, held the connection that broke."""
    for frame in frames:
        if _OWN_PROCESS.search(frame.path):
            return False
        if PACKAGE.search(frame.path):
            return _JOINS_PROCESSES.search(frame.path) is None
        if not STANDARD_LIBRARY.search(frame.path):
            return False
    return False


def read_end(error: ErrorText | None, last_lines: Sequence[str]) -> SaidAtEnd:
    """Return what a rank said at its end; ``error``: already read, if it left one."""
    return read_known_end(error or parse_error(last_lines), last_lines)


def read_known_end(
    error: ErrorText | None,
    last_lines: Sequence[str],
    *,
    beside: Sequence[str] = (),
    exit_text: str = "",
) -> SaidAtEnd:
    """Return what a rank said at its end, whose output was searched for errors.

    ``beside``: errors of threads, exit handlers and other processes. ``exit_text``: of `sys.exit`.
    """
    if error is not None:
        own = error_line(error)
        others = tuple(line for line in (*error.beside, *beside) if not own.startswith(line))
        device = _device(last_lines) if error.type_name in _SAY_NOTHING else None
        return SaidAtEnd(_said(error), device, tuple(dict.fromkeys(others)))
    if (bare := _bare_error(last_lines)) is not None:
        return SaidAtEnd(error=_said(bare), beside=tuple(beside))
    device = _device(last_lines)
    if device is None:
        return SaidAtEnd(beside=tuple(beside), exit_text=exit_text)
    return SaidAtEnd(device=device, beside=tuple(beside))


# That a process ended itself: the cause stands above, if anywhere.
_SAY_NOTHING: Final = frozenset({"terminate", "Fatal Python error"})


def _device(last_lines: Sequence[str]) -> SaidError | None:
    line = find_device_line(last_lines)
    if line is None:
        return None
    found = ErrorText("", line, line)
    return SaidError(FailureCause.DEVICE, fingerprint(found), line[:SAID_CHARS_MAX])


_BARE: Final = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (.+)$")
# Of what a line without a traceback may tell: nobody's node and no bug hangs on it.
_BY_LINE: Final = frozenset(
    {
        FailureCause.COMMUNICATION,
        FailureCause.SERVICE,
        FailureCause.STORAGE,
        FailureCause.HOST_MEMORY,
        FailureCause.DEVICE_MEMORY,
    }
)


def _bare_error(last_lines: Sequence[str]) -> ErrorText | None:
    """Return the error that the last line names where there is no traceback, or None where that says too little.

    Some programs print an exception and end. A broken connection is then taken for a peer's, which blames nobody.
    """
    lines = [text for line in last_lines[-LINES_MAX:] if (text := clean_line(line))]
    line = lines[-1] if lines else ""
    match = _BARE.match(line)
    before = lines[-2] if len(lines) > 1 else ""
    if match is None or before.startswith(" ") or is_aside(before):  # the end of a traceback
        return None
    error = ErrorText(match[1].rpartition(".")[2], match[2], line)
    return error if classify(error) in _BY_LINE else None


def _said(error: ErrorText) -> SaidError:
    line, last, first = error_line(error), _last_error_of_nccl(error), first_cause(error)
    said = f"{line}; NCCL says: {last}" if last else line
    if first:
        said = f"{said[: SAID_CHARS_MAX // 2]} (first cause: {first})"
    return SaidError(
        classify(error),
        fingerprint(error),
        said[:SAID_CHARS_MAX],
        may_be_peer(error),
        error.is_uncaught,
    )


_LAST_ERROR: Final = "\nLast error:"


def _last_error_of_nccl(error: ErrorText) -> str:
    """Return what NCCL says of an error below PyTorch's first line, such as whose version is another; empty: nothing.

    Source: ncclGetLastError in torch/csrc/distributed/c10d/NCCLUtils.cpp, "Last error:" and its text on the next line.
    """
    if "NCCL error" not in error.message:
        return ""
    lines = (
        error.traceback.rpartition(_LAST_ERROR)[2].split("\n")
        if _LAST_ERROR in error.traceback
        else []
    )
    return next((line.strip() for line in lines if line.strip()), "")


# Signals that others send; one that a child's own crash brings is the program's error, as it says.
_CHILD_SIGNALS: Final = {
    9: FailureCause.KILLED,
    **dict.fromkeys((1, 2, 3, 10, 12, 15), FailureCause.USER),
}
_SIGNAL_NAMES: Final = {
    **{"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12, "TERM": 15},
    # strsignal(3), as DataLoader.cpp prints it
    **{"Hangup": 1, "Interrupt": 2, "Quit": 3, "Terminated": 15},
    **{"User defined signal 1": 10, "User defined signal 2": 12},
}
_CHILD_ENDED: Final = re.compile(
    r"ProcessExitedException: process \d+ terminated with signal SIG([A-Z]+\d?)\b"
    r"|died with <Signals\.SIG([A-Z]+\d?): \d+>|returned non-zero exit status (1(?:29|3[0-9]|4[0-3]|59)|-\d{1,2})\."
    r"|TerminatedWorkerError: [\s\S]{0,900}?SIG([A-Z]+\d?)\(-\d+\)"
    r"|DataLoader worker[^\n]{0,40} is killed by signal: (Terminated|Hangup|Interrupt|Quit|User defined signal [12])\b"
    r"|Root Cause \(first observed failure\):[^=]{0,600}?\n +exitcode +: (-\d{1,2}|1(?:29|3[0-9]|4[0-3]))\b"
)
# Its end is known, its signal not: Ray's raylet and concurrent.futures see only that the process is gone.
_CHILD_GONE: Final = re.compile(
    r"(?:ActorDiedError|WorkerCrashedError|NodeDiedError|RayActorError|ActorUnavailableError)\b[\s\S]{0,1500}?(?:its worker process has died|worker died unexpectedly|its node has died|node is dead)"
    r"|\bBrokenProcessPool: A (?:process in the process pool was|child process) terminated abruptly"
)
_SHELL_BASE: Final = 128  # a shell exits with 128 + n after signal n ended its child


def _kill_of_child(error: ErrorText) -> FailureCause | None:
    """Return what ended the child of a rank that starts ranks itself, where that was a signal from outside.

    Sources: torch/multiprocessing/spawn.py; the table of torch/distributed/elastic/multiprocessing/errors/__init__.py,
    whose root cause is the child that ended first; subprocess.CalledProcessError, as `accelerate launch` ends, also
    of a shell (128 + n), as torchrun's child may be; joblib's loky; torch's DataLoader.cpp, whose workers a stop of the whole
    group ends.
    """
    last = error.traceback.rpartition("\nTraceback (most recent call last):")[2]
    said = last or error_line(error)
    if _WORKER_GONE.search(said):
        said = error.traceback  # how it ended stands further up
    match = _CHILD_ENDED.search(said)
    if match is None:
        return FailureCause.KILLED if _CHILD_GONE.search(said) else None
    reported = next(group for group in match.groups() if group is not None)
    if reported.lstrip("-").isdigit():
        number = -int(reported) if reported.startswith("-") else int(reported) - _SHELL_BASE
    else:
        number = _SIGNAL_NAMES.get(reported, 0)
    return _CHILD_SIGNALS.get(number)


def find_device_line(last_lines: Sequence[str]) -> str | None:
    """Return the last line in which a device reports its own fault, for a rank that left no error."""
    for line in reversed(last_lines[-LINES_MAX:]):
        cleaned = clean_line(line)
        if _OWN_WORD.search(cleaned):
            return cleaned
    return None
