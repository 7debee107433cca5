"""Ends of whole jobs: what each rank printed, how it ended, what the kernel and an alert say, and what follows. A table that grows.

Four ranks on two nodes, 0 and 1 on n1. Each end was labelled before the rules judged it. Sources name the public report whose lines a case follows;
"made" cases are built after one of these or after the library's own source. Where two classes may be right, both are given, the better one first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detectors.failed.error_classes import ErrorDecision
from detectors.failed.said_error import FailureCause
from detectors.finding import Blame
from tests.support.error_ends import CAUSED, MAIN, chain, lib, prefixed, recorded, std, tb

C, D, B = FailureCause, ErrorDecision, Blame
LATER, AGAIN, ANEW = D.RESTART_LATER, D.RESTART_UNLESS_AGAIN, D.RESTART
ALL: Final = (0, 1, 2, 3)


@dataclass(frozen=True)
class OneEnd:
    """How one rank ended."""

    lines: tuple[str, ...] = ()  # the last lines of its stderr
    exit_code: int | None = 1
    signal: int | None = None
    age_s: float = 1.0
    record: str = ""  # the hook's
    oom_killed: bool = False
    by_launcher: bool = False


@dataclass(frozen=True)
class JobEnd:
    """How a job ended, and what an experienced person says of it."""

    source: str
    ends: dict[int, OneEnd]
    causes: tuple[FailureCause, ...]
    culprit: str  # code, data, service, storage, device, memory, peer, person, unknown
    blames: tuple[Blame, ...]
    decision: ErrorDecision
    counts: bool = False  # something counts against a node
    kernel: tuple[str, ...] = ()  # its lines about the culprit's process
    has_alert: bool = False  # one about the culprit's node that asks for more than a restart
    ranks: tuple[int, ...] | None = None  # who is named; None: not judged


def died(*lines: Sequence[str] | str, **how: object) -> OneEnd:
    """Return the end of a rank that printed these lines."""
    said = [line for part in lines for line in ([part] if isinstance(part, str) else part)]
    return OneEnd(tuple(said), **how)  # type: ignore[arg-type]


def by_signal(signal: int, *lines: Sequence[str] | str, **how: object) -> OneEnd:
    return died(*lines, exit_code=None, signal=signal, **how)


def alike(end: OneEnd) -> dict[int, OneEnd]:
    return dict.fromkeys(ALL, end)


PEER: Final = prefixed(
    tb(
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer [10.0.0.3]:4242",
        MAIN,
        lib("torch/distributed/distributed_c10d.py:all_reduce"),
    )
)
WORKER: Final = (
    MAIN,
    lib("torch/utils/data/dataloader.py:__next__"),
    lib("torch/utils/data/dataloader.py:_process_data"),
    lib("torch/_utils.py:reraise"),
)


def in_worker(error: str, text: str, *frames: str, number: int = 0) -> list[str]:
    """Return what the rank prints whose loader's worker raised."""
    name = error.rpartition(".")[2]
    head = f"{error}: Caught {name} in DataLoader worker process {number}.\nOriginal Traceback (most recent call last):"
    inner = []
    for frame in (lib("torch/utils/data/_utils/worker.py:_worker_loop"), *frames):
        path, _colon, function = frame.rpartition(":")
        inner += [f'  File "{path}", line 35, in {function}', "    call()"]
    return [*tb(head, *WORKER), *inner, f"{name}: {text}", ""]


def job(
    source: str,
    ends: dict[int, OneEnd],
    causes: FailureCause | tuple[FailureCause, ...],
    culprit: str,
    blames: Blame | tuple[Blame, ...],
    decision: ErrorDecision,
    **more: object,
) -> JobEnd:
    causes = causes if isinstance(causes, tuple) else (causes,)
    blames = blames if isinstance(blames, tuple) else (blames,)
    return JobEnd(source, ends, causes, culprit, blames, decision, **more)  # type: ignore[arg-type]


def outage(source: str, lines: list[str], rank: int = 0, record: str = "") -> JobEnd:
    """Return the end of a job whose rank met something outside that was away."""
    ends = {rank: died(lines, record=record)}
    return job(source, ends, C.SERVICE, "service", B.NOBODY, LATER)


def error(
    source: str, lines: list[str], culprit: str = "code", rank: int | None = 2, record: str = "",
    causes: tuple[FailureCause, ...] = (C.EXCEPTION, C.PROGRAM),
) -> JobEnd:  # fmt: skip
    """Return the end of a job by an error of code, data or a setting, in one rank or in all."""
    end = died(lines, record=record)
    ends = alike(end) if rank is None else {rank: end}
    return job(source, ends, causes, culprit, B.PROGRAM, AGAIN)


def cut_table(code: int, said: str) -> list[str]:
    """Return the end of torchrun's table, whose head many failures have pushed out of the output."""
    return [
        *("[63]:", "  time      : 2024-12-31_16:45:52", "  host      : server", "  rank      : 64 (local_rank: 0)"),
        *(f"  exitcode  : {code} (pid: 467398)", "  error_file: <N/A>", f"  traceback : {said}"),
        "------------------------------------------------------",
        "Root Cause (first observed failure):",
        *("[0]:", "  time      : 2024-12-31_16:45:52", "  host      : server", "  rank      : 0 (local_rank: 0)"),
        *(f"  exitcode  : {code} (pid: 467397)", "  error_file: <N/A>", f"  traceback : {said}"),
        "======================================================",
    ]  # fmt: skip


GRPC: Final = (
    "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n"
    "\tstatus = StatusCode.UNAVAILABLE\n"
    '\tdetails = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:53800: Failed to connect to remote host: connect: Connection refused (111)"\n'
    ">"
)
ASYNC_NOTE: Final = "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
ECC: Final = f"RuntimeError: CUDA error: uncorrectable ECC error encountered\n{ASYNC_NOTE}\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
WATCHDOG: Final = [
    "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
    ASYNC_NOTE,
    "Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:44 (most recent call first):",
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7a71e4e84617 in /opt/venv/lib/python3.10/site-packages/torch/lib/libc10.so)",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
]
TIMED_OUT: Final = [
    "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600024 milliseconds before timing out.",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
]

SERVICES: Final = (
    outage("comet-ml/issue-tracking#31", tb("ValueError: Could not connect to server after multiple tries. ", MAIN, lib("comet_ml/comet.py:_loop"), lib("comet_ml/connection.py:wait_for_connection"))),
    outage("made: Neptune's NeptuneConnectionLostException", tb("neptune.exceptions.NeptuneConnectionLostException: \n\n----NeptuneConnectionLostException-----\nThe connection to the Neptune server was lost.", MAIN, lib("neptune/internal/backends/hosted_neptune_backend.py:execute_operations"))),
    outage("made: Aim's tracking server is away", tb(GRPC, MAIN, lib("aim/ext/transport/client.py:_reinitialize_resource"), lib("grpc/_channel.py:_end_unary_response_blocking"))),
    outage("made: httpx, name resolution", tb("httpx.ConnectError: [Errno -3] Temporary failure in name resolution", MAIN, lib("httpx/_transports/default.py:map_httpcore_exceptions"))),
    outage("huggingface/datasets#6577, its payload's sibling", in_worker("aiohttp.client_exceptions.ClientPayloadError", "Response payload is not completed", lib("aiohttp/client_reqrep.py:read"), lib("aiohttp/streams.py:read")), 3),
    outage("allenai/scirepeval#48", in_worker("fsspec.exceptions.FSTimeoutError", "", lib("fsspec/asyn.py:sync"), number=1), 1),
    outage("made: google-cloud-storage 503", tb("google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage.googleapis.com/storage/v1/b/x/o/ckpt: We encountered an internal error. Please try again.", MAIN, lib("google/cloud/storage/_http.py:api_request")), 2),
    outage("made: Azure Blob, DNS", tb("azure.core.exceptions.ServiceRequestError: <urllib3.connection.HTTPSConnection object at 0x7f>: Failed to resolve 'acc.blob.core.windows.net' ([Errno -2] Name or service not known)", MAIN, lib("azure/core/pipeline/transport/_requests_basic.py:send")), 1),
    outage("ray-project/ray#43803", tb("OSError: AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28, Timeout was reached", MAIN, "pyarrow/error.pxi:pyarrow.lib.check_status"), 2),
    outage("made: Optuna's PostgreSQL is away", tb('sqlalchemy.exc.OperationalError: (psycopg2.OperationalError) connection to server at "db" (10.0.0.8), port 5432 failed: Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?\n\n(Background on this error at: https://sqlalche.me/e/20/e3q8)', MAIN, lib("optuna/storages/_rdb/storage.py:get_all_trials"), lib("sqlalchemy/engine/base.py:__init__"))),
    outage("made: Sacred's MongoDB is away", tb("pymongo.errors.ServerSelectionTimeoutError: mongo:27017: timed out (configured timeouts: socketTimeoutMS: 20000.0ms), Timeout: 30s", MAIN, lib("sacred/observers/mongo.py:save"), lib("pymongo/topology.py:_select_servers_loop"))),
    outage("made: S3 asks to slow down", tb("boto3.exceptions.S3UploadFailedError: Failed to upload ckpt/1.pt to b/ckpt/1.pt: An error occurred (SlowDown) when calling the PutObject operation (reached max retries: 4): Please reduce your request rate.", MAIN, lib("boto3/s3/transfer.py:upload_file"))),
    outage("made: the hub limits requests", tb("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/x/y/revision/main", MAIN, lib("huggingface_hub/utils/_http.py:hf_raise_for_status")), 3),
    outage("made: wandb.init times out, by the hook", ["wandb: Network error (ConnectTimeout), entering retry loop."], 0, recorded("wandb.errors.errors.CommError", "Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting", MAIN, lib("wandb/sdk/wandb_init.py:init"))),
    outage("made: rsync to the archive host by paramiko", tb("paramiko.ssh_exception.SSHException: Error reading SSH protocol banner", MAIN, lib("paramiko/client.py:connect"), lib("paramiko/transport.py:_check_banner"))),
    outage("made: a mail at the end of an epoch", tb("smtplib.SMTPServerDisconnected: Connection unexpectedly closed", MAIN, "train.py:mail", std("smtplib.py:getreply"))),
    outage("made: a message to Slack", tb("slack_sdk.errors.SlackApiError: The request to the Slack API failed. (url: https://slack.com/api/chat.postMessage, status: 429)\nThe server responded with: {'ok': False, 'error': 'ratelimited'}", MAIN, lib("slack_sdk/web/slack_response.py:validate"))),
    outage("goodfire-ai/spd#557", prefixed(tb("requests.exceptions.ReadTimeout: (ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\"), '(Request ID: 1)')", MAIN, lib("huggingface_hub/hf_api.py:repo_info"))), 3),
    job("huggingface/datasets#6611: a clock that is wrong", {2: died(tb("botocore.exceptions.ClientError: An error occurred (RequestTimeTooSkewed) when calling the GetObject operation: The difference between the request time and the current time is too large.", MAIN, lib("aiobotocore/client.py:_make_api_call")))}, (C.SERVICE, C.EXCEPTION), "unknown", (B.NOBODY, B.PROGRAM), LATER),
)  # fmt: skip

STORED: Final = (
    job("ayumiymk/aster.pytorch#63", {2: died(tb("lmdb.Error: /data/train: Stale file handle", MAIN, "data.py:open"))}, C.STORAGE, "storage", B.NOBODY, AGAIN),
    job("pytorch/pytorch#45826", {2: by_signal(6, tb("RuntimeError: read(): fd 33 failed with Stale file handle", MAIN, lib("torch/serialization.py:_legacy_load")), ["terminate called after throwing an instance of 'c10::Error'", "  what():  owning_ptr == NullType::singleton() || owning_ptr->refcount_.load() > 0 INTERNAL ASSERT FAILED at ../c10/util/intrusive_ptr.h:348, please report a bug to PyTorch. "])}, C.STORAGE, "storage", B.NOBODY, AGAIN),
    job("made: h5py on Lustre", {3: died(tb("OSError: Can't synchronously read data (file read failed: time = Tue Jun  2 10:00:00 2026\n, filename = '/lustre/x.h5', file descriptor = 34, errno = 5, error message = 'Input/output error', buf = 0x7f, total read size = 4096)", MAIN, "data.py:__getitem__", "h5py/_objects.pyx:h5py._objects.with_phil.wrapper"))}, C.STORAGE, "storage", B.NOBODY, AGAIN),
    job("made: a sharded save by DCP on a full disk", alike(died(prefixed([*tb("torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])", MAIN, lib("torch/distributed/checkpoint/state_dict_saver.py:save")), "Traceback (most recent call last): (RANK 0)", '  File "x/torch/distributed/checkpoint/filesystem.py", line 300, in _write_files_from_queue', "    os.fsync(stream.fileno())", "OSError: [Errno 28] No space left on device"]))), C.STORAGE, "storage", B.NOBODY, AGAIN),
    job("modelscope/ms-swift#6695", {1: died(prefixed(tb("OSError: [Errno 116] Stale file handle: '/cache/indices.arrow'", MAIN, lib("datasets/arrow_dataset.py:_select_with_indices_mapping"))))}, C.STORAGE, "storage", B.NOBODY, AGAIN),
    job("made: two writers lock one HDF5 file", {0: died(tb("BlockingIOError: [Errno 11] Unable to synchronously open file (unable to lock file, errno = 11, error message = 'Resource temporarily unavailable')", MAIN, "data.py:open"))}, (C.EXCEPTION, C.STORAGE), "code", (B.PROGRAM, B.NOBODY), AGAIN),
    job("pytorch/pytorch#103895", {2: died(tb("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", MAIN, lib("torch/serialization.py:load")))}, (C.EXCEPTION, C.STORAGE), "data", (B.PROGRAM, B.NOBODY), AGAIN),
    job("made: MLflow's SQLite is locked", {0: died(tb("sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) database is locked", MAIN, lib("mlflow/store/tracking/sqlalchemy_store.py:log_metric")))}, (C.EXCEPTION, C.STORAGE, C.SERVICE), "service", (B.PROGRAM, B.NOBODY), LATER),
)  # fmt: skip

CODE: Final = (
    error("made: Pillow can't identify an image", in_worker("PIL.UnidentifiedImageError", "cannot identify image file '/data/7.jpg'", lib("PIL/Image.py:open")), "data"),
    error("lucidrains/stylegan2-pytorch#7", in_worker("OSError", "image file is truncated (1 bytes not processed)", lib("PIL/ImageFile.py:load")), "data"),
    error("made: LMDB's map is full", tb("lmdb.MapFullError: mdb_put: MDB_MAP_FULL: Environment mapsize limit reached", MAIN, "data.py:put")),
    error("made: a parquet file that is none", in_worker("pyarrow.lib.ArrowInvalid", "Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.", lib("pyarrow/parquet/core.py:__init__")), "data"),
    error("made: a pickle that is cut", tb("_pickle.UnpicklingError: pickle data was truncated", MAIN, "data.py:load"), "data", 3),
    error("caduceus#58", tb("OSError: [Errno 24] Too many open files", MAIN, lib("torch/utils/data/dataloader.py:__init__"), std("multiprocessing/popen_fork.py:_launch"))),
    error("made: ancdata", tb("RuntimeError: received 0 items of ancdata", MAIN, lib("torch/utils/data/dataloader.py:_try_get_data"), std("multiprocessing/reduction.py:recvfds"))),
    job("maskrcnn-benchmark#158", {2: died(tb("RuntimeError: unable to open shared memory object </torch_30997_2076642173> in read-write mode: Too many open files (24)", MAIN, lib("torch/multiprocessing/reductions.py:reduce_storage")))}, (C.EXCEPTION, C.HOST_MEMORY), "code", (B.PROGRAM, B.MEMORY), AGAIN),
    error("opendatahub-io/ilab-on-ocp#26", prefixed(tb("PermissionError: [Errno 13] Permission denied: '/.cache'", MAIN, std("os.py:makedirs"))), rank=1),
    error("pytorchvideo#222", tb("FileExistsError: [Errno 17] File exists: '/root/.cache/torch/hub'", MAIN, lib("torch/hub.py:load"), std("os.py:makedirs"))),
    error("made: bytes that are no UTF-8, by the hook", ["Exception in thread Thread-3 (_pin_memory_loop):"], "data", 3, recorded("UnicodeDecodeError", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte", MAIN, "data.py:__next__")),
    error("made: a compressed shard that is damaged", in_worker("zlib.error", "Error -3 while decompressing data: invalid distance too far back", lib("webdataset/tariterators.py:tar_file_iterator")), "data", 1),
    error("made: a tokenizer's file is an LFS pointer", tb("RuntimeError: Internal: could not parse ModelProto from tokenizer.model", MAIN, lib("sentencepiece/__init__.py:LoadFromFile")), "data", None),
    error("mlcommons/training#826", prefixed(tb("RuntimeError: Internal Triton PTX codegen error: \nptxas fatal   : Value 'sm_100' is not defined for option 'gpu-name'\n", MAIN, lib("triton/backends/nvidia/compiler.py:make_cubin"))), rank=None),
    error("made: Inductor finds no compiler", tb("torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')", MAIN, lib("torch/_inductor/cpp_builder.py:cpp_compiler_search"))),
    error("Dao-AILab/flash-attention#1762, on one node", tb("ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by /opt/conda/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so)", MAIN, lib("flash_attn/flash_attn_interface.py:<module>"))),
    error("made: Hydra shows its own last line", ["Error executing job with overrides: ['lr=1']", *tb("KeyError: 'momentum'", "train.py:main"), "", "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."], rank=None),
    error("made: DeepSpeed's batch sizes", tb("AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 32 != 1 * 4 * 4", MAIN, lib("deepspeed/runtime/config.py:_batch_assertion")), rank=None),
    error("made: DCP lacks a key", prefixed([*tb("torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1, 2, 3])", MAIN, lib("torch/distributed/checkpoint/state_dict_loader.py:load")), "Traceback (most recent call last): (RANK 0)", '  File "x/default_planner.py", line 300, in create_default_local_load_plan', "    raise RuntimeError()", "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.exp_avg."]), "code", None),
    error("made: a loss that is no number", tb("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.", MAIN, lib("torch/autograd/graph.py:_engine_run_backward"))),
    error("made: DeepSpeed's loss scale", tb("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", MAIN, lib("deepspeed/runtime/fp16/loss_scaler.py:update_scale")), rank=None),
    error("made: recursion", tb("RecursionError: maximum recursion depth exceeded while calling a Python object", MAIN, "model.py:forward"), rank=None),
    error("made: credentials that have ended", tb("botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the GetObject operation: The provided token has expired.", MAIN, lib("botocore/client.py:_make_api_call")), "code", 0),
    error("made: a gated model", tb("huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: 1)\n\nCannot access gated repo for url https://huggingface.co/x/y/resolve/main/config.json.\nAccess to model x/y is restricted. You must have access to it and be authenticated to access it. Please log in.", MAIN, lib("huggingface_hub/utils/_http.py:hf_raise_for_status")), "code", None),
    error("made: wandb without a key", tb("wandb.errors.errors.UsageError: No API key configured. Use `wandb login` to log in.", MAIN, lib("wandb/sdk/wandb_login.py:_login")), "code", 0),
    error("made: git finds a foreign owner", tb("git.exc.GitCommandError: Cmd('git') failed due to: exit code(128)\n  cmdline: git rev-parse HEAD\n  stderr: 'fatal: detected dubious ownership in repository at '/work'", MAIN, lib("git/cmd.py:execute")), "code", 0),
    error("made: a video is written to a pipe whose reader died", tb("BrokenPipeError: [Errno 32] Broken pipe", MAIN, lib("moviepy/video/io/ffmpeg_writer.py:write_frame")), "code", 0),
    error("made: a client that stumbles over an answer", tb("KeyError: 'location'", MAIN, lib("requests/structures.py:__getitem__")), "code", 0),
    error("made: an animation's writer died", tb("BrokenPipeError: [Errno 32] Broken pipe", MAIN, lib("matplotlib/animation.py:grab_frame")), "code", 0),
    error("made: no more threads", tb("RuntimeError: can't start new thread", MAIN, std("threading.py:start")), "code", 2, causes=(C.EXCEPTION, C.PROGRAM)),
    job("made: no more processes", {2: died(tb("BlockingIOError: [Errno 11] Resource temporarily unavailable", MAIN, std("multiprocessing/popen_fork.py:_launch")))}, (C.EXCEPTION, C.HOST_MEMORY), "code", (B.PROGRAM, B.MEMORY), AGAIN),
    job("made: a lock of a cache that nobody lets go", {2: died(tb("filelock._error.Timeout: The file lock '/home/u/.cache/x.lock' could not be acquired.", MAIN, lib("filelock/_api.py:acquire")))}, (C.EXCEPTION, C.STORAGE), "unknown", (B.PROGRAM, B.NOBODY), AGAIN),
    job("made: own code asks its own server", {0: died(tb("ConnectionRefusedError: [Errno 111] Connection refused", MAIN, "train.py:ask_reward_server", std("socket.py:create_connection")))}, (C.EXCEPTION, C.SERVICE), "service", (B.PROGRAM, B.NOBODY), AGAIN),
    job("made: sys.exit with a text", alike(died("config error: no such split 'vall'")), (C.EXIT,), "code", B.PROGRAM, AGAIN),
    job("made: argparse", alike(died("usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --lrr 1", exit_code=2)), (C.PROGRAM, C.EXIT, C.EXCEPTION), "code", B.PROGRAM, AGAIN),
    job("made: a bad sample, by the hook, then an abort of the exit", {2: by_signal(6, "terminate called without an active exception", record=recorded("ValueError", "bad sample 7", MAIN, "data.py:read"))}, C.EXCEPTION, "data", B.PROGRAM, AGAIN, ranks=(2,)),
    job("made: a bad sample with PyTorch's prefix, then a crash of the exit", {2: by_signal(11, prefixed(tb("ValueError: bad sample 7", MAIN, "data.py:read")), "Fatal Python error: Segmentation fault", "", "Current thread 0x00007f (most recent call first):", "  <no Python frame>")}, C.EXCEPTION, "data", B.PROGRAM, AGAIN, ranks=(2,)),
    job("made: an outage, then a crash in the driver's library at the exit", {0: by_signal(11, record=recorded("requests.exceptions.ConnectionError", "HTTPSConnectionPool(host='t', port=443): Max retries exceeded with url: /", MAIN, lib("requests/adapters.py:send")))}, C.SERVICE, "service", B.NOBODY, LATER, kernel=("python3[71]: segfault at 0 ip 00007f8 sp 00007ff error 4 in libcuda.so.570.86.15[7f8+1c000]",)),
    job("made: an error that the script printed and outlived, then a crash", {2: by_signal(11, tb("KeyError: 'a'"), "step 7")}, C.CRASHED, "unknown", B.RANK, ANEW),
    job("made: a bad sample, and its peers' errors before it", {0: died(PEER, age_s=1.2), 1: died(PEER, age_s=1.2), 2: died(tb("ValueError: bad sample 7", MAIN, "data.py:__getitem__"), age_s=1.1), 3: died(PEER, age_s=1.0)}, C.EXCEPTION, "data", B.PROGRAM, AGAIN, ranks=(2,)),
)  # fmt: skip

MACHINES: Final = (
    job("kohya-ss/sd-scripts#1434", {1: by_signal(6, prefixed(tb(ECC, MAIN)), WATCHDOG), 0: died(PEER, age_s=0.6), 2: died(PEER, age_s=0.6)}, C.DEVICE, "device", B.RANK, ANEW, counts=True, ranks=(1,)),
    job("made: ECC, then a thread's and a pipe's noise, by the hook", {1: died(["wandb: 🚀 View run at https://wandb.example/1", "Exception in thread IntMsgThr:", *tb("BrokenPipeError: [Errno 32] Broken pipe", std("threading.py:_bootstrap_inner"))], record=recorded("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered", MAIN, "model.py:step"))}, C.DEVICE, "device", B.RANK, ANEW, counts=True),
    job("made: NVML, GPU is lost", {2: died(tb("pynvml.NVMLError_GpuIsLost: GPU is lost", MAIN, lib("pynvml/nvml.py:_nvmlCheckReturn")))}, C.DEVICE, "device", B.RANK, ANEW, counts=True),
    job("pytorch/pytorch#67978", {2: died(tb(f"RuntimeError: CUDA error: the launch timed out and was terminated\n{ASYNC_NOTE}", MAIN, lib("torch/nn/modules/conv.py:forward")))}, C.KERNEL_FAULT, "unknown", B.RANK, ANEW),
    job("made: an illegal instruction, with an alert", {3: died(tb("RuntimeError: CUDA error: an illegal instruction was encountered", MAIN))}, C.KERNEL_FAULT, "device", B.RANK, ANEW, counts=True, has_alert=True),
    job("made: an illegal access on every rank", alike(died(tb("RuntimeError: CUDA error: an illegal memory access was encountered", MAIN))), C.KERNEL_FAULT, "code", B.PROGRAM, ANEW),
    job("made: a crash in the driver's library", {2: by_signal(11)}, C.CRASHED, "device", B.RANK, ANEW, counts=True, kernel=("python3[71]: segfault at 0 ip 00007f8 sp 00007ff error 4 in libcuda.so.570.86.15[7f8+1c000]",)),
    job("made: a crash in torch", {2: by_signal(11, "Fatal Python error: Segmentation fault")}, C.CRASHED, "code", B.RANK, ANEW, kernel=("python3[71]: segfault at 10 ip 00007f8 sp 00007ff error 4 in libtorch_cpu.so[7f8+1c000]",)),
    job("made: a crash of every rank", alike(by_signal(11)), C.CRASHED, "code", B.PROGRAM, ANEW),
    # A child's own crash is the program's error, a signal from outside a kill.
    job("OpenOCR#71: bus errors, by an inner torchrun", {2: died(cut_table(-7, "Signal 7 (SIGBUS) received by PID 467397"))}, (C.EXCEPTION, C.CRASHED), "unknown", (B.PROGRAM, B.RANK), AGAIN),
    job("made: a kill, by an inner torchrun's table without its head", {2: died(cut_table(-9, "Signal 9 (SIGKILL) received by PID 467397"))}, C.KILLED, "unknown", B.RANK, ANEW),
    job("made: both ranks of a node killed for memory", {2: by_signal(9, oom_killed=True), 3: by_signal(9, oom_killed=True)}, C.OOM_KILLED, "memory", B.MEMORY, ANEW, ranks=(2, 3)),
    job("made: a kill that nobody explains", {2: by_signal(9)}, C.KILLED, "unknown", B.RANK, ANEW),
    job("made: a kill with an alert beside it", {2: by_signal(9)}, C.KILLED, "device", B.RANK, ANEW, counts=True, has_alert=True),
    job("made: a wrapper's child was killed", {2: died(exit_code=137)}, C.KILLED, "unknown", B.RANK, ANEW),
    job("made: a wrapper's child crashed", {2: died(exit_code=139)}, C.CRASHED, "unknown", B.RANK, ANEW),
    job("made: mp.spawn's child killed", {2: died(tb("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL", MAIN, lib("torch/multiprocessing/spawn.py:join")))}, C.KILLED, "unknown", B.RANK, ANEW),
    job("made: the scheduler ends the job", alike(by_signal(15)), C.USER, "person", B.USER, ANEW),
    job("made: an inner agent got SIGTERM", alike(died(tb("torch.distributed.elastic.multiprocessing.api.SignalException: Process 1234 got signal: 15", MAIN, lib("torch/distributed/elastic/agent/server/api.py:run")))), C.USER, "person", B.USER, ANEW),
    job("made: the GPU's memory, beside another's process", {2: died(prefixed([*tb("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Process 4711 has 60.00 GiB memory in use.", MAIN)]), "[rank2]:[W601 10:00:00 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.")}, C.DEVICE_MEMORY, "memory", B.PROGRAM, AGAIN),
    job("made: numpy's memory", {2: died(tb("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 12.0 GiB for an array with shape (1610612736,) and data type float64", MAIN, "data.py:load"))}, C.HOST_MEMORY, "memory", B.MEMORY, ANEW),
    job("made: three watchdogs wait for a rank that hangs", {rank: by_signal(6, TIMED_OUT) for rank in (0, 1, 3)}, C.COMMUNICATION, "peer", B.COMMUNICATION, ANEW),
    job("dlrover#443", {0: died(tb("RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:44796 (errno: 98 - Address already in use).", MAIN, lib("torch/distributed/rendezvous.py:_create_c10d_store")))}, (C.COMMUNICATION, C.EXCEPTION), "code", (B.COMMUNICATION, B.PROGRAM), ANEW),
    job("made: a chain from a lost file to a lost peer", {2: died(chain(tb("FileNotFoundError: [Errno 2] No such file or directory: '/data/9.npy'", MAIN, "data.py:read"), tb("RuntimeError: step 9 failed", MAIN, "train.py:step"), link=CAUSED)), 0: died(PEER, age_s=0.7)}, C.EXCEPTION, "data", B.PROGRAM, AGAIN, ranks=(2,)),
)  # fmt: skip

JOB_ENDS: Final = (*SERVICES, *STORED, *CODE, *MACHINES)
