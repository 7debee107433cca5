"""Which kind an error is that a rank printed: the words of libraries and of CPython, in one order of questions. Pure.

`detectors.failed.error_classes` says the class of an error; a kind is finer, and tells what a restart can do about it.
"""

import re
from typing import Final

from detectors.failed.error_classes import may_be_peer
from detectors.failed.error_text import ErrorText, error_line, read_frames, read_statements
from detectors.failed.loading_error import LoadingVerdict, judge_loading
from detectors.failed.said_error import FailureCause
from detectors.job_log.kinds import FactTier, LogKind

_K, _T = LogKind, FactTier
_STALLS: Final = re.compile(
    r"Timed out waiting \d+ ?ms|Watchdog caught collective|wait timeout after \d+ ?ms|collective operation timeout|monitoredBarrier|Timeout at NCCL|timed out in \d+ms|before timing out|[Bb]arrier timed out"
)
_JOINS: Final = re.compile(
    r"connectFullMesh failed|store based barrier|clients joined|waiting for clients|client socket has (?:timed out|failed)|Rendezvous\w*Error|failed to connect to .*TCPStore|connect\(\) timed out|Connection to .* timed out|wait timeout after \d+ms, keys|Socket Timeout"
)
_LIBRARY: Final = re.compile(
    r"cannot open shared object file|undefined symbol|\.so(?:\.\d+)*\b|DLL load failed|symbol lookup|version `|static TLS"
)
_NAN: Final = re.compile(
    r"(?i)\bnan\b|loss scale (?:is )?already at|minimum loss scale|non-?finite|not finite|\binf(?:inity)?\b.{0,30}(?:loss|grad)|(?:loss|grad)\w{0,64}.{0,40}\binf\b|FloatingPointError"
)
_DATA_TYPES: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:JSONDecodeError|UnicodeDecodeError|ParserError|ArrowInvalid|YAMLError|ScannerError|DatasetGenerationError|DataError|UnidentifiedImageError|csv\.Error|Error: line contains NUL)\b"
)
# A tokenizer.json of a newer format than the library reads. Source: tokenizers, bindings/python; serde's untagged enums.
_NEWER_FORMAT: Final = re.compile(r"did not match any variant of untagged enum \w{1,40}Wrapper\b")
_CONFIG_WORDS: Final = re.compile(
    r"(?i)divisible by|environment variable \w+ expected, but not set|must flatten tensors with uniform|cannot flatten integer dtype|\bworld[ _]size\b.*(?:equal|match|divis|must|not)|(?:tensor|pipeline|context|expert|data)[-_ ](?:model[-_ ])?parallel\w*|train_batch_size|micro_batch|\b(?:must|has to|have to|needs to) be (?:set|specified|provided|one of|greater|positive|less|equal|>|<)|(?:unknown|unsupported|unrecognized|invalid|missing) (?:\w+ ){0,2}(?:option|config\w*|argument|parameter|key|setting|field|optimizer|scheduler|model type|choice)|not a valid|is not supported|\bconfig (?:variables? will be ignored|values? that mismatch)\b|Missing key .{0,60}full_key|extra (?:fields|inputs) not permitted|field required|\b(?:chat_template|pad_token|padding token)\b|[Vv]alidationError"
)
_CONFIG_TYPES: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:\w{0,64}Config\w{0,64}(?:Error|Exception)|ValidationError|MissingMandatoryValue|Interpolation\w*Error|ArgumentError|MisconfigurationException|ConfigAttributeError|ConfigKeyError)\b"
)
_STATE: Final = re.compile(
    r"Error\(s\) in loading state_dict|Missing key\(s\) in state_dict|Unexpected key\(s\) in state_dict|size mismatch for |[Ss]ize mismatch between saved |loaded state dict (?:has a different number|contains a parameter group)|Missing key in checkpoint state_dict"
    r"|[Gg]lobal shape mismatch for loaded|Shape mismatch (?:between|for) (?:loaded|checkpoint|expected|ckpt)|(?:[Uu]nexpected|[Mm]issing) keys?\b.{0,60}(?:checkpoint|state[_ ]?dict)"
)
_LACKS_NAME: Final = re.compile(r"(?m)^ *KeyError: ")
# A path that isn't there, in other words than the errno's.
_ABSENT: Final = re.compile(
    r"\[Errno 2\]|No such file or directory|(?:cannot|can't|could not|couldn't) (?:be found|find) (?:at|under|in|any \w+ (?:at|in)) |\b(?:[Dd]irectory|[Ff]ile|[Pp]ath|[Ff]older|[Cc]heckpoint)\b[^\n]{0,200}\b(?:does not|doesn't) exist|(?:[Cc]annot|[Cc]an't|[Uu]nable to|[Cc]ould not) (?:find|locate) (?:\w+ ){0,3}(?:file|directory|checkpoint|folder)|[Nn]o (?:valid )?checkpoints? (?:was |were )?found"
)
_PATH: Final = re.compile(
    r"/[\w.-]|\b[\w-]{1,80}\.(?:bin|idx|jsonl?|ya?ml|txt|npy|pt|pth|ckpt|parquet)\b"
)
# Triton, Inductor and CUDA graphs: what they build doesn't depend on the values of a sample.
_KERNEL_BUILD: Final = re.compile(
    r"Error building extension|Ninja is required to load C\+\+ extensions|BackendCompilerFailed|InductorError|Unknown key: '?cubin|PassManager::run failed|device kernel image is invalid|unsupported toolchain|PTX JIT|ptxas (?:fatal|error)|PTXASError|CompileTimeAssertionFailure"
    r"|CUDA driver error: file not found|No valid triton configs|OutOfResources|MLIRCompilationError|stream is capturing|during capture|(?m:^(?:[\w.]+\.)?(?:CompilationError|LoweringException|Unsupported|InternalTorchDynamoError|TorchRuntimeError)\b)"
)
# Calls that PyTorch refuses, whatever machine and sample: torch/cuda/__init__.py, multiprocessing/context.py,
# distributed_c10d.py, c10d/reducer.cpp, ATen's dispatch; serialization.py since 2.6, distributed/tensor; flash_attn's csrc.
_TORCH_USAGE: Final = re.compile(
    r"re-initialize CUDA in forked subprocess|before the current process has finished its bootstrapping phase|context has already been set"
    r"|[Dd]efault process group has not been initialized|initialize the default process group twice|DDP expects same model across all ranks"
    r"|DistributedDataParallel is not needed when|Tensors must be CUDA and dense|No backend type associated with device type"
    r"|Weights only load failed\. This file can still be loaded|was not an allowed global by default|got mixed torch\.Tensor and DTensor"
    r"|FlashAttention (?:forward |backward )?(?:only supports? (?:head dim|fp16|bf16)|for head dim)"
    r"|\" not implemented for '|weight type .{0,60}should be the same|Could not run '[\w:.]+' with arguments from"
)
# PyTorch's wrappers refuse the module or the settings that they are given.
_WRAPPERS_CHECK: Final = re.compile(
    r"/torch/(?:nn/parallel|distributed/(?:fsdp|_composable|device_mesh|tensor/parallel|pipelining))(?:/|\.py$)"
)
# An error that PyTorch's own operations raise, and that speaks of nothing that a machine has.
_OPERATIONS: Final = re.compile(
    r"/torch/(?:nn|optim|autograd|_ops|_refs|_meta_registrations|functional|_tensor|_dynamo|distributed/fsdp)(?:/|\.py$)"
)
_OF_MACHINE: Final = re.compile(
    r"(?i)\b(?:cuda|cudnn|cublas|nccl|gpus?|hip|driver|memory|alloc\w*|thread|process|worker|file|descriptor|socket|connect\w*|time[d-]? ?out|signal|killed|os error|errno|host|rank|lost|error code|failed with error)\b|(?-i:[A-Z]_(?:ERROR|STATUS|RESULT|ERR)_[A-Z])|std::|\.(?:cc?|cpp|cu|h):\d"
)
# What the runtimes of other accelerators say of a device; whose fault it is their codes don't tell.
# Source: Level Zero and Unified Runtime (ze_api.h, ur_api.h); Habana's synapse_common_types.h; CANN; CNRT; MUSA; AWS Neuron's nrt.h.
_OTHER_DEVICES: Final = re.compile(
    r"\b(?:UR|PI|ZE)_(?:RESULT_)?ERROR_[A-Z_]{1,40}|level_zero backend failed|\bsynStatus=\d|\bCNRT error|MUSA error|\bNRT_EXEC_[A-Z_]{1,40}|ACL stream synchronize failed"
)
_NO_BUILD: Final = re.compile(
    r"[Tt]orch not compiled with CUDA|(?:not|n't) (?:been )?(?:compiled|built) with (?:CUDA|NCCL|GPU|distributed|MPI)|doesn't have \w+ built in|no NCCL support"
    r"|\bonly supports? [\w ,]{1,40}\bGPUs\b|\bonly supported on [^\n]{0,60}(?:\bGPUs\b|compute capability)"
)
_DAMAGED: Final = re.compile(
    r"PytorchStreamReader failed|failed finding central directory|invalid header or archive is corrupted|unexpected EOF|Ran out of input|pickle data was truncated|UnpicklingError|BadZipFile|InvalidHeaderDeserialization|HeaderTooLarge|MetadataIncompleteBuffer|corrupt"
)
_AUTH: Final = re.compile(
    r"\b(?:401|403)\b.{0,20}(?:Client Error|Unauthorized|Forbidden)|GatedRepo|AccessDenied|InvalidAccessKeyId|NoCredentials|Unable to locate credentials|SignatureDoesNotMatch|AuthenticationError|(?i:invalid (?:api[ _]key|token|credentials))|(?i:api[_ ]key not)|UsageError: api_key|RepositoryNotFound|RevisionNotFound|DatasetNotFoundError|\b404 Client Error|does not appear to have a file named|is not a local folder and is not a valid model identifier"
)
# What std::system_error says of a socket's errno: ENOTCONN, ECONNRESET, EPIPE, ECONNREFUSED, ETIMEDOUT.
_SOCKET_WORDS: Final = re.compile(
    r"Transport endpoint is not connected|Connection (?:reset by peer|refused|timed out)|Broken pipe"
)
# Source: torch_npu, ProcessGroupHCCL.cpp; CANN's EI and EJ codes are of links and of HCCL's processes.
_HCCL: Final = re.compile(
    r"HCCL error in|hccl api failed|HCCL function error|\bE[IJ]00\d\d: |\bHccl\w+, error code"
)
# Source: XLA, nccl_utils.cc and nccl_errors.h.
_XLA_NCCL: Final = re.compile(r"\bNCCL operation \w+\([^\n]*failed: (?!invalid)")
_NO_HOST: Final = re.compile(
    r"\bhost not found: "
)  # torch/csrc/distributed/c10d, of the master's name
# A variable that isn't set: the innermost frame is that of `os.environ`.
_ENVIRON: Final = re.compile(
    r'(?:/os\.py|<frozen os>)", line \d{1,6}, in __getitem__\n(?:[^\n]{0,200}\n){0,3}KeyError: '
    r"|os\.environ\[[^\n]{0,200}\n(?:[ ~^]{0,200}\n)?KeyError: "
)
_SHAPES: Final = re.compile(
    r"mat1 and mat2 |size of tensor a |expanded size of the tensor|Expected all tensors to be on the same device|Sizes of tensors must match|is invalid for input of size|Given groups=|Given normalized_shape|stack expects each tensor|shape mismatch|expected scalar type|must match the size of tensor|same number of dimensions"
)
# Source: torch/csrc/autograd, torch/csrc/distributed/c10d/reducer.cpp: the model's code is at fault.
_GRAPH: Final = re.compile(
    r"modified by an inplace operation|Expected to have finished reduction in the prior iteration|Expected to mark a variable ready only once|does not require grad and does not have a grad_fn|backward through the graph a second time|grad can be implicitly created only for scalar|leaf Variable that requires grad (?:is being|has been) used in an in-place|can require gradients|One of the differentiated Tensors (?:appears|does not)|expected m1 and m2 to have the same dtype|should be the same type|must have the same dtype"
)
_FAULT_OF_WORKER: Final = "killed by signal: Segmentation fault"  # torch/csrc/DataLoader.cpp
_OUT_OF_SHM: Final = re.compile(r"shared memory|/dev/shm|\(shm\)|</torch_\w+>")
_CUDA_KINDS: Final = (
    (re.compile(r"device-side assert triggered|cudaErrorAssert"), _K.DEVICE_ASSERT),
    (re.compile(r"no kernel image|invalid device function"), _K.NO_KERNEL_IMAGE),
    (_KERNEL_BUILD, _K.KERNEL_BUILD),
    (re.compile(r"illegal memory access|illegal address|misaligned"), _K.ILLEGAL_ACCESS),
)
_SIMPLE: Final = {
    FailureCause.OOM_KILLED: (_K.OOM_KILLED, _T.FACT),
    FailureCause.DEVICE_MEMORY: (_K.DEVICE_MEMORY, _T.OWN),
    FailureCause.KILLED: (_K.KILLED, _T.END),
    FailureCause.CRASHED: (_K.CRASHED, _T.OWN),
    FailureCause.MIXED_NCCL: (_K.NCCL_VERSIONS, _T.OWN),
    FailureCause.SERVICE: (_K.SERVICE_AWAY, _T.OWN),
}


def kind_of_error(cause: FailureCause, error: ErrorText) -> tuple[LogKind, FactTier]:  # noqa: PLR0911, PLR0912 - one return for each kind
    """Return the kind of an error and how much it explains."""
    text = "\n".join(read_statements(error))
    first = error_line(error)
    name = error.type_name
    if cause is FailureCause.COMMUNICATION:
        if "EADDRINUSE" in text or "ddress already in use" in text:
            return LogKind.PORT_IN_USE, FactTier.STALL
        if _JOINS.search(text):
            return LogKind.NEVER_JOINED, FactTier.VICTIM
        if _STALLS.search(text):
            return LogKind.HANG, FactTier.STALL
        if "ncclInternalError" in text and "Message truncated" in text:  # NCCL's own check
            return LogKind.NCCL_SYSTEM, FactTier.STALL
        return LogKind.PEER_LOST, FactTier.VICTIM
    if name == "Fatal Python error":
        if "Segmentation" in error.message:
            return LogKind.SEGFAULT, FactTier.OWN
        if "Bus error" in error.message:
            return LogKind.BUS_ERROR, FactTier.OWN
        if "Illegal" in error.message:
            return LogKind.CRASHED, FactTier.OWN
        return LogKind.ABORTED, FactTier.WEAK
    if simple := _SIMPLE.get(cause):
        return simple
    if cause is FailureCause.USER:
        return (
            (LogKind.INTERRUPTED, FactTier.END)
            if name == "KeyboardInterrupt"
            else (LogKind.TERMINATED, FactTier.VICTIM)
        )
    if cause is FailureCause.HOST_MEMORY:
        if _OUT_OF_SHM.search(text) or "[Errno 28]" in text:
            return LogKind.SHARED_MEMORY, FactTier.OWN
        if _FAULT_OF_WORKER in text:
            return LogKind.SEGFAULT, FactTier.OWN
        is_loader = "DataLoader worker" in text or "dataloader.py" in error.traceback
        return LogKind.LOADER_WORKER if is_loader else LogKind.HOST_MEMORY, FactTier.OWN
    if cause is FailureCause.STORAGE:
        if "No space left" in text or "Errno 28" in text or "os error 28" in text:
            return LogKind.DISK_FULL, FactTier.OWN
        is_quota = "uota" in text or "Errno 122" in text
        return LogKind.DISK_QUOTA if is_quota else LogKind.STORAGE_ERROR, FactTier.OWN
    if cause is FailureCause.DEVICE:
        if re.search(r"(?i)version mismatch|initialize nvml|NVMLError", text):
            return LogKind.DRIVER, FactTier.OWN
        if re.search(
            r"No (?:CUDA|HIP) GPUs|no (?:CUDA|ROCm)-capable|busy or unavailable|busy", text
        ):
            return LogKind.GPU_ABSENT, FactTier.OWN
        return LogKind.GPU_HARDWARE, FactTier.OWN
    if cause is FailureCause.KERNEL_FAULT:
        if re.search(
            r"driver version is insufficient|driver on your system|no NVIDIA driver|forward compatibility was attempted",
            text,
        ):
            return LogKind.DRIVER, FactTier.OWN
        if re.search(r"out of memory|OUT_OF_|Failed to CUDA \w*alloc", text):
            return LogKind.DEVICE_MEMORY, FactTier.OWN
        return next(
            (kind for form, kind in _CUDA_KINDS if form.search(text)), LogKind.LAUNCH_FAILURE
        ), FactTier.OWN
    if cause is FailureCause.PROGRAM:
        return _kind_of_program(name, text), FactTier.OWN
    return _kind_of_exception(error, name, first, text)


def _kind_of_program(name: str, said: str) -> LogKind:  # noqa: PLR0911 - one return for each kind
    if name in ("SyntaxError", "IndentationError", "TabError"):
        return LogKind.SYNTAX_ERROR
    if name in ("NameError", "UnboundLocalError"):
        return LogKind.NAME_ERROR
    if name in ("TypeError", "AttributeError"):
        return LogKind.TYPE_ERROR
    if "Detected mismatch between collectives" in said:
        return LogKind.HANG_MISMATCH
    for form, kind in _CUDA_KINDS:
        if form.search(said):
            return kind
    if "invalid device ordinal" in said:
        return LogKind.GPU_ABSENT
    if re.search(r"ncclInvalid|Duplicate GPU", said):
        return LogKind.NCCL_USAGE
    return LogKind.PROGRAM_ERROR


def _kind_of_exception(  # noqa: PLR0911, PLR0912 - one return for each kind
    error: ErrorText, name: str, first: str, said: str
) -> tuple[LogKind, FactTier]:
    if name in ("ModuleNotFoundError", "ImportError"):
        return (
            LogKind.LIBRARY_MISSING if _LIBRARY.search(said) else LogKind.IMPORT_ERROR
        ), FactTier.OWN
    if _FAULT_OF_WORKER in said:
        return LogKind.SEGFAULT, FactTier.OWN
    if name == "RuntimeError" and "Failed to import " in said:
        return (
            LogKind.LIBRARY_MISSING if _LIBRARY.search(said) else LogKind.IMPORT_ERROR
        ), FactTier.OWN
    if not name and re.match(
        r"can't open file|No module named|Error while finding module", error.message
    ):
        return LogKind.SCRIPT_MISSING, FactTier.OWN
    if not name and re.match(r"\S+: error: |Error: ", error.message):
        return LogKind.USAGE, FactTier.OWN
    if name == "terminate":
        return LogKind.ABORTED, FactTier.WEAK
    if _OTHER_DEVICES.search(said):
        is_held = "acquire" in said
        return (LogKind.GPU_ABSENT if is_held else LogKind.LAUNCH_FAILURE), FactTier.OWN
    if name.rpartition("::")[2] == "system_error" and _SOCKET_WORDS.search(error.message):
        return LogKind.PEER_LOST, FactTier.VICTIM
    if _HCCL.search(said) or _XLA_NCCL.search(said):
        return LogKind.NCCL_SYSTEM, FactTier.VICTIM
    if "[Errno 98]" in said or "ddress already in use" in said:
        return LogKind.PORT_IN_USE, FactTier.STALL
    if _NO_HOST.search(first):
        return LogKind.NEVER_JOINED, FactTier.STALL
    if may_be_peer(error):
        return LogKind.PEER_LOST, FactTier.VICTIM
    if name == "KeyError" and _ENVIRON.search(error.traceback):
        return LogKind.CONFIGURATION, FactTier.OWN
    if _STATE.search(said):
        return LogKind.CHECKPOINT_MISMATCH, FactTier.OWN
    is_refused = _TORCH_USAGE.search(said) is not None
    if _DAMAGED.search(said) and not is_refused and not _DATA_TYPES.search(first):
        return LogKind.CHECKPOINT_DAMAGED, FactTier.OWN
    if not is_refused and judge_loading(error) is LoadingVerdict.LOADING:
        if "FileNotFoundError" in said or _ABSENT.search(said):
            return LogKind.FILE_MISSING, FactTier.OWN
        # A file that is damaged can't be read; one that is read and lacks a name was saved by another program.
        is_other = _LACKS_NAME.search(said) is not None
        return (
            LogKind.CHECKPOINT_MISMATCH if is_other else LogKind.CHECKPOINT_DAMAGED
        ), FactTier.OWN
    if _AUTH.search(said):
        return LogKind.NOT_AUTHORIZED, FactTier.OWN
    if name in ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError") or (
        _ABSENT.search(first) and _PATH.search(first)
    ):
        return LogKind.FILE_MISSING, FactTier.OWN
    if name == "PermissionError" or "[Errno 13]" in said:
        return LogKind.PERMISSION, FactTier.OWN
    if _NAN.search(first):
        return LogKind.NOT_FINITE, FactTier.OWN
    if is_refused:
        return LogKind.TORCH_USAGE, FactTier.OWN
    if _NO_BUILD.search(said):
        return LogKind.NO_KERNEL_IMAGE, FactTier.OWN
    if _KERNEL_BUILD.search(said):
        return LogKind.KERNEL_BUILD, FactTier.OWN
    if _GRAPH.search(said):
        return LogKind.GRAPH, FactTier.OWN
    if _SHAPES.search(said):
        return LogKind.SHAPE_MISMATCH, FactTier.OWN
    if (
        _NEWER_FORMAT.search(first)
        or _DATA_TYPES.search(first)
        or any(_DATA_TYPES.search(part) for part in said.split("\n"))
    ):
        return LogKind.DATA_FORMAT, FactTier.OWN
    is_checked = name in (
        "AssertionError",
        "ValueError",
        "KeyError",
        "RuntimeError",
        "Exception",
        "",
    )
    frames = next(iter(read_frames(error.traceback)), ())
    innermost = frames[0].path if frames else ""
    if name == "ValueError" and _WRAPPERS_CHECK.search(innermost):
        return LogKind.TORCH_USAGE, FactTier.OWN
    if _CONFIG_TYPES.search(first) or (is_checked and _CONFIG_WORDS.search(first)):
        return LogKind.CONFIGURATION, FactTier.OWN
    if name in (
        "KeyError",
        "ValueError",
        "IndexError",
        "AssertionError",
        "ZeroDivisionError",
        "OverflowError",
        "RecursionError",
        "StopIteration",
    ):
        return LogKind.VALUE_ERROR, FactTier.OWN
    is_of_operation = name == "RuntimeError" and _OPERATIONS.search(innermost)
    if is_of_operation and not _OF_MACHINE.search(said):
        return LogKind.TORCH_USAGE, FactTier.OWN
    if name.endswith("Error") and any("dist::" in part for part in said.split("\n")):
        return LogKind.PEER_LOST, FactTier.VICTIM
    return LogKind.EXCEPTION, FactTier.OWN
