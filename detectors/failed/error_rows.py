"""The rows by which an error finds its class: words and places, each with its source. Pure.

`detectors.failed.error_classes` says what the classes mean and how rows are applied.
"""

import re
from dataclasses import dataclass
from typing import Final

from detectors.failed.said_error import FailureCause


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
