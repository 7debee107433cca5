"""Judges whether a rank's error shows that the program could not load the state it began from. Pure.

Another checkpoint helps only where this one is what failed. So the judgement has three values, and
"not known" is the usual one: a key that a data set lacks, a file that isn't there, a tensor of the
wrong size in `forward` say nothing about the checkpoint. Rules, in this order:

1. A service, storage, memory, a device or another rank failed: OUTSIDE, wherever it was raised.
2. The message is one that libraries raise only about saved state (`STATE_ROWS`): LOADING.
3. The innermost frames decide. They are read from the raise outwards, past the frames that only
   pass a call on, until one says what the program was doing: it loaded a checkpoint, read data,
   made a step, or saved. Nothing decisive within `FRAMES_MAX` frames: UNKNOWN.

Evidence: the reports of public trackers in tests/support/loading_errors.py, each with its source.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.failed.error_classes import CLASSES
from detectors.failed.error_rows import ROWS
from detectors.failed.error_text import ErrorFrame, ErrorText, read_frames, read_statements
from detectors.failed.outages import CLIENT, PACKAGE, STANDARD_LIBRARY
from detectors.failed.said_error import SAID

FRAMES_MAX: Final = 24
"""Frames that are read, from the raise outwards. Lightning passes a restore through 12 frames of its own."""
OPAQUE_MAX: Final = 2
"""Frames of unknown purpose between the raise and the function that loads: a migration step, a helper of it."""


class LoadingVerdict(Enum):
    """What an error says about the checkpoint that an attempt began from."""

    LOADING = "loading"  # the program could not load it
    OUTSIDE = "outside"  # a service, storage, memory, a device or a peer: no other checkpoint helps
    UNKNOWN = "unknown"


_OUTSIDE_CAUSES: Final = frozenset(cause for cause in SAID if CLASSES[cause].is_outside)


@dataclass(frozen=True, slots=True)
class TextRow:
    """Words of errors that mean the same, and who prints them."""

    pattern: re.Pattern[str]
    source: str


def _row(pattern: str, source: str) -> TextRow:
    return TextRow(re.compile(pattern), source)


OUTSIDE_ROWS: Final = (
    _row(
        r"[Ii]nput/output error|Remote I/O error|No space left on device|Disk quota exceeded"
        r"|Stale (?:NFS )?file handle|Read-only file system|Transport endpoint is not connected"
        r"|Cannot send after transport endpoint shutdown|Device or resource busy|No such device\b"
        r"|Resource temporarily unavailable|Too many open files|Host is down|Key has expired"
        r"|Communication error on send|Software caused connection abort|Unknown error \d+"
        r"|Structure needs cleaning|Connection timed out|Permission denied|Operation not permitted"
        r"|\bPermissionError\b|Bus error|\d requested and \d+ written|iostream error"
        r"|StreamWriter failed",
        "strerror(3) of EIO, EREMOTEIO, ENOSPC, EDQUOT, ESTALE, EROFS, ENOTCONN, ESHUTDOWN, EBUSY, ENODEV, "
        "EAGAIN, EMFILE, EHOSTDOWN, EKEYEXPIRED, ECOMM, ECONNABORTED, EUCLEAN, ETIMEDOUT, EACCES, EPERM; torch.save",
    ),
    _row(
        r"HTTPS?Connection|HTTPError|HTTPException|HTTPStatusError|\bHTTP(?:/[\d.]+)? (?:Error )?[45]\d\d\b"
        r"|\b[45]\d\d (?:Client|Server) Error|(?i:(?:status|error|response)(?:[ _]code)?[:= ]{1,3}[45]\d\d\b)"
        r"|\bHTTP Error\b|Max retries exceeded|Too Many Requests|(?i:rate ?limit)|requests\.exceptions|urllib3\.exceptions|httpx\.\w|aiohttp\.\w|Service Unavailable"
        r"|Bad Gateway|Gateway Time-?out|Internal Server Error|Unauthorized\b|\bForbidden\b",
        "requests, urllib, httpx, aiohttp and the services behind them",
    ),
    _row(
        r"Name or service not known|(?i:temporary failure in name resolution)|nodename nor servname"
        r"|No address associated with hostname|getaddrinfo|gaierror|NameResolutionError"
        r"|SSLError|SSLCertVerification|\bSSL: |CERTIFICATE_VERIFY_FAILED|ProxyError|URLError|urlopen error"
        r"|\b\w*TimeoutError\b|Network is unreachable|(?i:connection error)|(?i:couldn't connect)|(?i:failed to connect)"
        r"|(?i:could ?n[o']t connect)|\b\w*(?:Connect|Connection|Read|Pool|Request)Timeout\b"
        r"|\b\w*Connect(?:ion)?Error\b|(?i:unable to connect)|RemoteDisconnected|IncompleteRead|ChunkedEncodingError",
        "getaddrinfo(3), Python's ssl and http.client, requests, httpx, redis",
    ),
    _row(
        r"LocalEntryNotFoundError|OfflineMode|RepositoryNotFoundError|GatedRepoError|RevisionNotFoundError"
        r"|EntryNotFoundError|huggingface_hub\.(?![\w.]*HFValidationError)\w+|is not a valid model identifier|gated repo|on the Hub\b"
        r"|wandb\.\w+|\bCommError\b|mlflow\.\w+|MlflowException|RestException|neptune\.\w+|comet_ml\.\w+"
        r"|clearml\.\w+|swanlab\.\w+|(?i:\bapi[_ -]?key\b)|(?i:invalid (?:access )?token)",
        "huggingface_hub, wandb, mlflow and other trackers",
    ),
    _row(
        r"botocore\.|boto3\.|NoCredentialsError|EndpointConnectionError|ClientError: An error occurred"
        r"|google\.(?:api_core|auth|cloud)\.|azure\.core\.|grpc\.|RpcError|StatusCode\.\w+|DeadlineExceeded"
        r"|ServiceUnavailable|redis\.exceptions|pymongo\.|psycopg2?\.|sqlalchemy\.|kafka\.|paramiko\."
        r"|s3fs\.|gcsfs\.|adlfs\.|\bUNAVAILABLE: |\bDEADLINE_EXCEEDED\b",
        "clients of object stores, data bases and queues",
    ),
    _row(
        r"\bCUDA (?:error|driver)|device-side assert|torch\.cuda\.is_available\(\) is False"
        r"|torch\.cuda\.device_count\(\) is \d|CU(?:DNN|BLAS|SPARSE|FFT)_STATUS_|\bNCCL\b|HIP error|\bXid\b"
        r"|No (?:CUDA|HIP)\b|Found no NVIDIA driver|not compiled with CUDA|CUDA unknown error|CUDA initialization"
        r"|\bcuda[A-Z]\w+\(\)|HSA_STATUS",
        "CUDA runtime; torch/serialization.py where the node has no such device",
    ),
)
"""Errors of what the program uses. They are never held against a checkpoint."""

STATE_ROWS: Final = (
    _row(
        r"Error\(s\) in loading state_dict|copying a param with shape"
        r"|(?i:(?:missing|unexpected) key(?:s|\(s\))? (?:in|found in) (?:the )?(?:source |checkpoint |loaded )*(?:state_?dict|checkpoint))"
        r"|loaded state dict (?:contains|has) a|doesn't match the size of optimizer's group",
        "torch.nn.Module.load_state_dict; torch.optim.Optimizer.load_state_dict",
    ),
    _row(
        r"\bCheckpointException\b|CheckpointingException|Global shape mismatch for loaded"
        r"|Size mismatch between saved|in checkpoint state_dict",
        "torch.distributed.checkpoint; megatron.core.dist_checkpointing",
    ),
    _row(
        r"checkpoint being loaded used a DP|Cannot load (?:model|optimizer) \w+ from checkpoint"
        r"|restore training state but checkpoint contains only|tree structures do not match"
        r"|Unable to load weights from pytorch checkpoint|Can't find a valid checkpoint at"
        r"|KeyError: 'pytorch-lightning_version'|No state_dict found|(?:not found|not present|(?:does not|doesn't) exist) in (?:the )?(?:loaded |saved )?checkpoint"
        r"|objects could not be loaded|variables during loading",
        "DeepSpeed, fairseq, Lightning, Orbax, transformers, mmengine, TensorFlow, Keras",
    ),
    _row(
        r"(?i:\b(?:checkpoint|ckpt|state[ _]dict|saved state)s?\b[^\n]{0,120}\b(?:corrupt\w*|incompatible|not compatible"
        r"|does(?: not|n't) match|do not match|mismatch\w*|truncated|unsupported (?:format|version)|is missing|lacks))",
        "scripts that check what they load",
    ),
    _row(
        r"(?i:\b(?:corrupt\w*|incompatible|mismatch\w*|truncated|unsupported|could ?n[o']t load|cannot load|can't load"
        r"|fail(?:ed|s|ure)? to (?:load|restore)|unable to (?:load|restore))\b[^\n]{0,60}\b(?:checkpoint|ckpt|state[ _]dict|optimizer state)s?\b)",
        "scripts that check what they load",
    ),
)
"""Words about saved state only."""

ARCHIVE_ROWS: Final = (
    _row(
        r"PytorchStreamReader failed|file in archive is not in a subdirectory|Invalid magic number"
        r"|unexpected EOF, expected \d+ more bytes|Weights only load failed|WeightsUnpickler error"
        r"|storage has wrong (?:byte )?size",
        "torch/serialization.py, caffe2/serialize/inline_container.cc",
    ),
    _row(
        r"SafetensorError|Error while deserializing|MetadataIncompleteBuffer|HeaderTooLarge|InvalidHeader",
        "safetensors",
    ),
    _row(
        r"UnpicklingError|invalid load key|pickle data was truncated|unpickling stack underflow"
        r"|unsupported pickle protocol|Ran out of input|Can't get attribute '[^']*' on <module"
        r"|BadZipFile|File is not a zip file|Bad CRC-32|is not a file in the archive|as a pickle",
        "Python's pickle and zipfile, numpy",
    ),
)
"""A file that can't be read: a checkpoint, or data. Frames tell which."""

_RECOMPUTING: Final = re.compile(r"torch\.utils\.checkpoint|[Rr]ecomput|gradient[ _]checkpoint")
# What is wrong whatever the checkpoint holds, or is said of a file that may come back.
_NEVER_LOADING: Final = re.compile(
    r"(?m)^(?:[\w.]+\.)?(?:FileNotFoundError|NotADirectoryError|IsADirectoryError|FileExistsError|NameError"
    r"|UnboundLocalError|SyntaxError|IndentationError|SystemExit)\b"
    r"|No such file or directory|got an unexpected keyword argument|required positional argument"
    r"|takes \d+ positional argument|takes from \d+ to \d+ positional"
    r"|[Ll]oss scale (?:is )?already at|[Mm]inimum loss scale"
)
_IMPORTS: Final = re.compile(r"(?m)^(?:ModuleNotFoundError|ImportError)\b")

_NEUTRAL_NAMES: Final = re.compile(
    r"^(?:wrapper|wrapped|inner|inner_func|_?inner_fn|_wrap(?:ped)?|decorate_context|decorated|_fn|new_func|_call_impl"
    r"|_wrapped_call_impl|<(?:listcomp|genexpr|dictcomp|lambda)>|__enter__|__exit__|apply|_apply|map_fun|local_step"
    r"|reduce_scatter|all_reduce|broadcast|deepcopy|_deepcopy_\w+|reraise|result|__get_result|_call_and_handle_interrupt|__getattr__)$"
)
_SPAWN: Final = re.compile(
    r"(?:^|/)multiprocessing/(?:spawn|reduction|connection|resource_sharer)\.py$"
)
_SOCKETS: Final = re.compile(r"(?:^|/)(?:socket|ssl)\.py$")
_TORCH_READER: Final = re.compile(
    r"(?:^|/)(?:torch/serialization|torch/_weights_only_unpickler|torch/_utils|safetensors/\w+)\.py$"
)
# PyTorch's distributed checkpoints: whatever these raise is said of what they read.
_DISTRIBUTED_LOADER: Final = re.compile(
    r"(?:^|/)torch/distributed/checkpoint/(?:state_dict_loader|optimizer|_state_dict_utils|planner_helpers)\.py$"
)
_READER: Final = re.compile(
    r"(?:^|/)(?:numpy/(?:lib|core|_core)/[\w/]+|zipfile(?:/__init__)?|pickle|tarfile|gzip|lzma|bz2|joblib/[\w/]+|cloudpickle/[\w/]+|h5py/[\w/]+|dill/[\w/]+|fsspec/[\w/]+)\.py$"
)
_KEEPS_CHECKPOINTS: Final = re.compile(
    r"(?i)(?:^|/)(?:orbax/|torchsnapshot/|stable_baselines3/common/save_util\.py$|[\w/-]*(?:checkpoint|ckpt)\w*(?:/[\w/]+)?\.py$)"
)
_RECOMPUTES: Final = re.compile(
    r"torch/utils/checkpoint\.py$|activation_?checkpoint|checkpoint_activation"
)
_STATE: Final = (
    r"(?:checkpoint|ckpt|chkpt|state_?dict|snapshot|pretrained|train(?:er|ing)_state|rng_state)"
)
_NAMES_STATE: Final = re.compile(rf"(?i){_STATE}")
_LOADS_STATE: Final = re.compile(
    rf"(?i)(?:load|restor|resum|read|deseriali[sz]|migrat|upgrade|convert|remap|unpack|merge|init_from|import|set|parse)\w*{_STATE}"
    rf"|(?:check|verif|validat)\w*{_STATE}(?!\w*(?:conf|cfg|arg|interval|freq|path|dir|opt|name))"
    rf"|{_STATE}\w*(?:load|restor|resum)|from_pretrained|(?:^|_)load_state$|^_*(?:auto_|maybe_|try_)*(?:resume|restore)(?:$|_)|^__setstate__$"
)
_READS_DATA: Final = re.compile(
    r"(?i)(?<!meta)data(?!parallel)|batch(?!_?norm)|sample|token|vocab|corpus|label|annot|image|\bimg|video|audio|feature|collate|(?<!from_)config|cfg|yaml|json"
    r"|argument|process(?:or|ed)|prompt|embedding_?file|shard_?index|__getitem__|__next__|__iter__|fetch|__len__"
)
_LOADS_PARTS: Final = re.compile(
    r"(?i)(?:load|restor|resum|reload)\w*(?:model|weight|param|optim|schedul|module|network|net[dg]?$|ema|scaler|state|backup|latest|last|previous|train)"
)
_SAVES: Final = re.compile(
    r"(?i)(?:^|_)(?:save|write|dump|export|store|persist|remove|delete|clean\w*|prune|rotate)(?:$|_|d$)"
)
_TRAINS: Final = re.compile(
    r"(?i)^(?:\w*forward\w*|\w*backward\w*|step|_?single_tensor_\w+|_?multi_tensor_\w+|(?:_?init|update)_(?:group|params)|training_step|train_step"
    r"|\w*_loss|loss|evaluate|validate|validation\w*|run_evaluation|train_(?:one_)?epoch\w*|clip_grad\w*|generate)$"
)
_ENTRIES: Final = re.compile(
    r"(?i)^(?:<module>|\w*main\w*|train|fit|run|launch|start|pretrain|cli|worker|train_worker|setup|__init__|init|build)$"
)
_LOADING_LINE: Final = re.compile(
    r"(?i)load_state_dict\s*\(|torch\.load\s*\(|load_state\s*\(|load_(?:checkpoint|ckpt)\w*\s*\(|load_(?:model|weights|params)\s*\(|\.restore\w*\s*\("
    r"|load_file\s*\(|resume_from|\.load\s*\([^()\n]*(?:resum|restor|checkpoint|ckpt|snapshot)|\b\w*(?:checkpoint|ckpt|chkpt|state_dict|snapshot|restored|loaded|saved)\w*\s*(?:\[|\.(?:get|pop|item|items|keys|files)\b)"
)

_RESUMES: Final = re.compile(r"\bTrainerState\.load\w*\s*\(")  # transformers, from JSON


_NO_FRAME: Final = ErrorFrame("", "", "")


def judge_loading(error: ErrorText) -> LoadingVerdict:
    """Return what an error says about the checkpoint that the attempt began from; never raises."""
    statements = read_statements(error)
    if any(_is_outside(statement) for statement in statements):
        return LoadingVerdict.OUTSIDE
    tracebacks = list(read_frames(error.traceback))
    frames = next((part for part in reversed(tracebacks) if part), [])
    if _raised_by_service(frames):
        return LoadingVerdict.OUTSIDE
    if any(_RECOMPUTING.search(statement) for statement in statements):
        return LoadingVerdict.UNKNOWN
    if any(_matches(STATE_ROWS, statement) for statement in statements):
        return LoadingVerdict.UNKNOWN if _saves(frames) else LoadingVerdict.LOADING
    if _NEVER_LOADING.search(statements[0]):
        return LoadingVerdict.UNKNOWN
    return _judge_frames(frames, statements[0])


def _is_outside(statement: str) -> bool:
    rows = (row for row in ROWS if row.cause in _OUTSIDE_CAUSES and not row.needs_loader)
    if any(row.pattern.search(statement) for row in rows):
        return True
    return _matches(OUTSIDE_ROWS, statement)


def _matches(rows: Sequence[TextRow], statement: str) -> bool:
    return any(row.pattern.search(statement) for row in rows)


def _raised_by_service(frames: Sequence[ErrorFrame]) -> bool:
    """Return whether the client of a service raised: its frame is the innermost outside Python itself."""
    for frame in frames:
        if CLIENT.search(frame.path) or _SOCKETS.search(frame.path):
            return True
        if not STANDARD_LIBRARY.search(frame.path):
            return False
    return False


def _saves(frames: Sequence[ErrorFrame]) -> bool:
    return any(_SAVES.search(frame.function) for frame in frames[:4])


def _judge_frames(  # noqa: PLR0911 - one return for each kind of frame
    frames: Sequence[ErrorFrame], statement: str
) -> LoadingVerdict:
    """Return what the innermost frames say the program was doing."""
    is_archive = _matches(ARCHIVE_ROWS, statement)
    is_import = _IMPORTS.search(statement) is not None
    has_read_archive = has_read_file = False  # by a reader's frame inside
    opaque = 0
    for frame, caller in zip(frames[:FRAMES_MAX], [*frames[1:], _NO_FRAME], strict=False):
        if _SPAWN.search(frame.path):
            return LoadingVerdict.UNKNOWN  # a worker's start, not a file
        if _TORCH_READER.search(frame.path) and not _SAVES.search(frame.function):
            has_read_archive = True
            continue
        if _READER.search(frame.path):
            has_read_file = True
            continue
        if _DISTRIBUTED_LOADER.search(frame.path) and not _SAVES.search(frame.function):
            return LoadingVerdict.LOADING
        if _is_neutral(frame):
            continue
        if is_import and not has_read_archive:
            return LoadingVerdict.UNKNOWN  # an import of the program's own
        verdict = _decide(frame, caller, is_raise=opaque == 0)
        if verdict is not None:
            return verdict
        is_vetoed = _READS_DATA.search(f"{frame.function} {frame.code}") or _is_data_file(frame)
        if has_read_archive or (is_archive and has_read_file):
            is_torch = has_read_archive and (is_archive or is_import)
            return LoadingVerdict.LOADING if is_torch and not is_vetoed else LoadingVerdict.UNKNOWN
        opaque += 1
        if is_vetoed or opaque > OPAQUE_MAX or _ENTRIES.search(frame.function):
            return LoadingVerdict.UNKNOWN
    return LoadingVerdict.UNKNOWN


def _decide(frame: ErrorFrame, caller: ErrorFrame, *, is_raise: bool) -> LoadingVerdict | None:
    """Return what one frame decides, or None; ``is_raise``: nothing but readers and wrappers is inside it."""
    name = frame.function
    if _RECOMPUTES.search(frame.path) or _SAVES.search(name) or _TRAINS.search(name):
        return LoadingVerdict.UNKNOWN
    is_data = _READS_DATA.search(name) is not None
    if name == "from_pretrained":  # else a tokenizer's, a configuration's
        is_state = _READS_DATA.search(frame.path.rpartition("/")[2]) is None
        return LoadingVerdict.LOADING if is_state else LoadingVerdict.UNKNOWN
    loads_state = _LOADS_STATE.search(name) and not (is_data and not _NAMES_STATE.search(name))
    if loads_state or _KEEPS_CHECKPOINTS.search(frame.path) or _RESUMES.search(caller.code):
        return LoadingVerdict.LOADING
    if is_data:
        return LoadingVerdict.UNKNOWN
    is_line = is_raise and _LOADING_LINE.search(frame.code) and not _READS_DATA.search(frame.code)
    return LoadingVerdict.LOADING if is_line or _LOADS_PARTS.search(name) else None


def _is_neutral(frame: ErrorFrame) -> bool:
    if STANDARD_LIBRARY.search(frame.path) and not PACKAGE.search(frame.path):
        return True
    return _NEUTRAL_NAMES.search(frame.function) is not None


def _is_data_file(frame: ErrorFrame) -> bool:
    return re.search(r"(?i)(?:^|/)\w*data\w*(?:/\w+)?\.py$", frame.path) is not None
