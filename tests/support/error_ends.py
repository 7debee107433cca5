"""Ends of ranks by an error: the text, the exit code, the hook's record, and what each means. A table that grows.

Sources name the public report whose lines a case follows; "made" cases are built after one of these or after
the library's own source. Paths are cut. `culprit`: what was at fault, for people.
"""

import json
from dataclasses import dataclass
from typing import Final

from detectors.failed.said_error import FailureCause
from detectors.finding import Blame

C = FailureCause
SP: Final = "/opt/conda/lib/python3.11/site-packages"
STD: Final = "/opt/conda/lib/python3.11"
DURING: Final = "During handling of the above exception, another exception occurred:"
CAUSED: Final = "The above exception was the direct cause of the following exception:"
MAIN: Final = "train.py:<module>"
PID: Final = 7318


@dataclass(frozen=True)
class End:
    """How one rank ended, and what it means."""

    source: str
    lines: tuple[str, ...]  # the last lines of its stderr
    cause: FailureCause
    culprit: str  # code, data, service, storage, device, memory, peer, person, killer, unknown
    blame: Blame
    line: str = ""  # the error as people see it, its start; empty: not judged
    exit_code: int = 1
    record: str = ""  # the hook's


def tb(error: str, *frames: str) -> list[str]:
    """Return a traceback; a frame is ``path:function``."""
    lines = ["Traceback (most recent call last):"]
    for number, frame in enumerate(frames or (MAIN,)):
        path, _colon, function = frame.rpartition(":")
        lines += [f'  File "{path}", line {number + 10}, in {function}', "    call()"]
    return [*lines, *error.split("\n")]


def chain(*parts: list[str], link: str = DURING) -> list[str]:
    lines: list[str] = []
    for part in parts:
        lines += ["", link, "", *part] if lines else part
    return lines


def prefixed(lines: list[str]) -> list[str]:
    return [f"[rank1]: {line}" for line in lines]


def recorded(kind: str, text: str, *frames: str) -> str:
    placed = [[*frame.rpartition(":")[::2], "m"] for frame in frames or (MAIN,)]
    rows = [[path, 10, function, module] for path, function, module in placed]
    part = {"type": kind, "text": text, "frames": rows, "link": "context"}
    return json.dumps({"attached": True, "pid": PID, "chain": [part]})


def lib(name: str) -> str:
    """Return a frame in an installed package."""
    path, _colon, function = name.rpartition(":")
    return f"{SP}/{path}:{function}"


def std(name: str) -> str:
    path, _colon, function = name.rpartition(":")
    return f"{STD}/{path}:{function}"


LOADER: Final = (
    MAIN,
    lib("torch/utils/data/dataloader.py:__next__"),
    lib("torch/utils/data/dataloader.py:_try_get_data"),
)
ALLREDUCE: Final = (
    MAIN,
    lib("torch/distributed/c10d_logger.py:wrapper"),
    lib("torch/distributed/distributed_c10d.py:all_reduce"),
)
SAVE: Final = (
    MAIN,
    "train.py:save",
    lib("torch/serialization.py:save"),
    lib("torch/serialization.py:_save"),
)
BLAMES: Final = {
    C.SERVICE: Blame.NOBODY, C.STORAGE: Blame.NOBODY, C.PROGRAM: Blame.PROGRAM, C.EXCEPTION: Blame.PROGRAM, C.EXIT: Blame.PROGRAM,
    C.DEVICE: Blame.RANK, C.KERNEL_FAULT: Blame.RANK, C.DEVICE_MEMORY: Blame.PROGRAM, C.HOST_MEMORY: Blame.MEMORY,
    C.COMMUNICATION: Blame.COMMUNICATION, C.USER: Blame.USER, C.KILLED: Blame.RANK, C.MIXED_NCCL: Blame.PROGRAM,
}  # fmt: skip


def end(
    source: str,
    lines: list[str],
    cause: FailureCause,
    culprit: str,
    line: str = "",
    *,
    exit_code: int = 1,
    record: str = "",
) -> End:
    return End(source, tuple(lines), cause, culprit, BLAMES[cause], line, exit_code, record)


def service(source: str, error: str, *frames: str) -> End:
    return end(source, tb(error, MAIN, *frames), C.SERVICE, "service")


def code(source: str, error: str, *frames: str) -> End:
    return end(source, tb(error, MAIN, *frames), C.PROGRAM, "code")


def data(source: str, error: str, *frames: str) -> End:
    return end(source, tb(error, MAIN, *frames), C.EXCEPTION, "data")


def spawned(error: str) -> list[str]:
    """Return what a rank prints that has started ranks by mp.spawn."""
    return tb(
        f"torch.multiprocessing.spawn.{error}",
        MAIN,
        lib("torch/multiprocessing/spawn.py:start_processes"),
        lib("torch/multiprocessing/spawn.py:join"),
    )


# torch/distributed/elastic/multiprocessing/errors/__init__.py
ELASTIC_TABLE: Final = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-06-01_10:00:00
  host      : node1
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 4711)
  error_file: <N/A>
  traceback : <N/A>
============================================================"""

ECC: Final = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
REAL: Final = prefixed(
    tb(
        ECC
        + "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
    )
)
DEL: Final = [
    "Exception ignored in: <function _ConnectionBase.__del__ at 0x7f>",
    *tb(
        "TypeError: 'NoneType' object is not callable", std("multiprocessing/connection.py:__del__")
    ),
]
ATEXIT: Final = [
    "Error in atexit._run_exitfuncs:",
    *tb("BrokenPipeError: [Errno 32] Broken pipe", lib("wandb/sdk/lib/sock_client.py:finish")),
]
THREAD: Final = [
    "Exception in thread NetStatThr:",
    *tb(
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        std("threading.py:_bootstrap_inner"),
    ),
]
TRACKER: Final = tb("KeyError: '/mp-nmka7lcc'", std("multiprocessing/resource_tracker.py:main"))
LOGGING: Final = [
    "--- Logging error ---",
    *tb("ValueError: I/O operation on closed file.", std("logging/__init__.py:emit")),
    "Call stack:",
    '  File "train.py", line 3, in <module>',
    "    x()",
    "Message: 'a'",
    "Arguments: ()",
]
FEEDER: Final = tb(
    "KeyboardInterrupt",
    std("multiprocessing/process.py:_bootstrap"),
    std("multiprocessing/queues.py:_feed"),
)
HOOK: Final = [
    "Error in sys.excepthook:",
    *tb("AttributeError: x", lib("rich/traceback.py:x")),
    "",
    "Original exception was:",
]
SPAWNED: Final = [
    "Process SpawnProcess-3:",
    *tb("KeyError: 'image'", std("multiprocessing/process.py:_bootstrap"), "data.py:read"),
]
CHILD: Final = tb("KeyError: '/mp-abcd'", "<string>:<module>")
TASK: Final = [
    "Task exception was never retrieved",
    "future: <Task finished name='Task-3'>",
    *tb("ValueError: closed", lib("aiohttp/client.py:close")),
]
CUDA_DEL: Final = [
    "Exception ignored in: <function CUDAGraph.__del__ at 0x7f>",
    *tb("RuntimeError: CUDA error: driver shutting down", lib("torch/cuda/graphs.py:__del__")),
]
SSL: Final = [
    "Fatal error on SSL transport",
    "protocol: <asyncio.sslproto.SSLProtocol object at 0x7f17>",
    "transport: <_SelectorSocketTransport closing fd=15 read=idle write=<idle, bufsize=0>>",
    *tb(
        "OSError: [Errno 9] Bad file descriptor", std("asyncio/sslproto.py:_process_write_backlog")
    ),
]
SENDER: Final = [
    "Thread SenderThread:",
    *tb("OSError: [Errno 5] Input/output error", lib("wandb/sdk/internal/internal_util.py:run")),
]
PATHOS: Final = tb("KeyError: '/mp-nmka7lcc'", lib("multiprocess/resource_tracker.py:main"))
LOKY: Final = tb(
    "FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/loky-7318'",
    lib("joblib/externals/loky/backend/resource_tracker.py:main"),
)
SHUT_DOWN: Final = [
    "terminate called after throwing an instance of 'c10::Error'",
    "  what():  CUDA error: driver shutting down",
]
# What a process of a pool raised, as the rank prints it. Source: multiprocessing/pool.py, RemoteTraceback.
REMOTE: Final = [
    "multiprocessing.pool.RemoteTraceback: ",
    '"""',
    *tb("KeyError: 'image'", std("multiprocessing/pool.py:worker"), "data.py:read"),
    '"""',
    "",
    CAUSED,
    "",
    *tb("KeyError: 'image'", MAIN, std("multiprocessing/pool.py:get")),
]
CALLBACK: Final = [
    "exception calling callback <Future at 0x7f state=finished raised BrokenProcessPool>",
    *tb(
        "concurrent.futures.process.BrokenProcessPool: A child process terminated abruptly",
        std("concurrent/futures/_base.py:_invoke_callbacks"),
    ),
]
STDOUT: Final = [
    "Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>",
    "BrokenPipeError: [Errno 32] Broken pipe",
]
GROUP: Final = [
    "  + Exception Group Traceback (most recent call last):",
    '  |   File "train.py", line 10, in <module>',
    "  |     call()",
    "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
    "  +-+---------------- 1 ----------------",
    "    | Traceback (most recent call last):",
    '    |   File "train.py", line 12, in fetch',
    "    |     call()",
    "    | aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host minio:9000 ssl:default",
    "    +------------------------------------",
]
GROUP_RECORD: Final = json.dumps(
    {
        "attached": True,
        "pid": PID,
        "chain": [
            {
                "type": "ExceptionGroup",
                "text": "unhandled errors in a TaskGroup (1 sub-exception)",
                "frames": [["train.py", 10, "<module>", "m"]],
                "link": "cause",
            },
            {
                "type": "aiohttp.client_exceptions.ClientConnectorError",
                "text": "Cannot connect to host minio:9000 ssl:default",
                "frames": [[f"{SP}/aiohttp/connector.py", 10, "_create_direct_connection", "m"]],
                "link": "context",
            },
        ],
    }
)
POOL: Final = "HTTPSConnectionPool(host='tracker.example', port=443): Max retries exceeded with url: /api/log (Caused by NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno 111] Connection refused'))"
BAD: Final = "ValueError: bad sample 7"

# fmt: off
NOISE_ENDS: Final = (
    *(end(f"trials/ecc: a device error, then {name}", REAL + noise, C.DEVICE, "device", "RuntimeError: CUDA error: uncorr") for name, noise in (
        ("nothing", []), ("__del__", DEL), ("atexit", ATEXIT), ("a thread", THREAD), ("resource_tracker", TRACKER), ("logging", LOGGING), ("a worker's feeder", FEEDER),
        ("a spawned child", SPAWNED), ("a child of -c", CHILD), ("asyncio", TASK), ("all", [*DEL, *ATEXIT, *THREAD, *TRACKER, *LOGGING]))),
    *(end(f"made: the same without PyTorch's prefix, then {name}", tb(ECC) + noise, C.DEVICE, "device", "RuntimeError: CUDA error: uncorr") for name, noise in (
        ("__del__", DEL), ("atexit", ATEXIT), ("a thread", THREAD), ("resource_tracker", TRACKER), ("logging", LOGGING), ("a feeder", FEEDER), ("a child", SPAWNED), ("asyncio", TASK),
        ("a transport of asyncio", SSL), ("wandb's sender", SENDER), ("pathos", PATHOS), ("loky", LOKY), ("the driver's end", SHUT_DOWN))),
    *(end(f"made: out of device memory, then {name}", tb("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.") + noise, C.DEVICE_MEMORY, "code", "OutOfMemoryError: CUDA out of") for name, noise in (
        ("__del__", DEL), ("atexit", ATEXIT), ("a thread", THREAD))),
    *(end(f"trials/tails: a bad sample, then {name}", prefixed(tb(BAD)) + noise, C.EXCEPTION, "data", BAD) for name, noise in (
        ("__del__", DEL), ("atexit", ATEXIT), ("a thread", THREAD), ("resource_tracker", TRACKER), ("logging", LOGGING), ("a child", CHILD), ("a CUDA graph's __del__", CUDA_DEL))),
    *(end(f"made: recorded by the hook, whatever is printed: {name}", noise, C.EXCEPTION, "data", BAD, record=recorded("ValueError", "bad sample 7")) for name, noise in (
        ("nothing", []), ("__del__", DEL), ("CUDA in __del__", CUDA_DEL), ("a helper's plain traceback", tb("OSError: [Errno 28] No space left on device")), ("another's CUDA error", tb(ECC)))),
    *(end(f"made: a bad sample without the prefix, then {name}", tb(BAD) + noise, C.EXCEPTION, "data", BAD) for name, noise in (
        ("a transport of asyncio", SSL), ("wandb's sender", SENDER), ("pathos", PATHOS), ("loky", LOKY), ("the driver's end", SHUT_DOWN),
        ("structlog", ["2026-11-28 20:00:01 [error    ] upload failed", *tb("ConnectionResetError: [Errno 104] Connection reset by peer", lib("redis/connection.py:read"))]),
        ("tornado", ["[E 261128 20:00:01 web:1798] Uncaught exception GET /", *tb("KeyError: 'x'", lib("tornado/web.py:_execute"))]))),
    end("made: an error that the script prints, then one of a pool's process", [*tb("urllib.error.URLError: <urlopen error [Errno 111] Connection refused>"), "going on", *REMOTE], C.EXCEPTION, "data", "KeyError: 'image'"),
    end("made: a pool's error, then a helper's", [*REMOTE, *TRACKER], C.EXCEPTION, "data", "KeyError: 'image'"),
    end("made: a recorded group of outages", GROUP, C.SERVICE, "service", "ClientConnectorError: Cannot connect to host minio:9000", record=GROUP_RECORD),
    end("made: recorded device error behind a handled one", tb(BAD), C.DEVICE, "device", "AcceleratorError: CUDA", record=recorded("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered")),
    end("made: recorded outage of a tracker", [], C.SERVICE, "service", record=recorded("RuntimeError", POOL)),
    end("made: recorded interrupt", [], C.USER, "person", record=recorded("KeyboardInterrupt", "")),
    end("made: rich's hook fails, Python prints the original", HOOK + tb(ECC), C.DEVICE, "device", "RuntimeError: CUDA"),
    end("made: a logged traceback behind the error", [*tb(BAD), "2026-11-28 20:00:01 ERROR upload failed", *tb("ConnectionResetError: [Errno 104] Connection reset by peer", lib("wandb/x.py:send"))], C.EXCEPTION, "data", BAD),
    end("made: noise before the error", DEL + THREAD + tb(BAD), C.EXCEPTION, "data", BAD),
    end("made: only a thread has failed, then the script exits", THREAD, C.EXIT, "unknown"),
    end("made: only a destructor has failed", DEL, C.EXIT, "unknown", exit_code=3),
    end("trials/ends: sys.exit(text)", ["step 49", "config error: no such split"], C.EXIT, "code", "exit code 1: config error: no such split"),
    end("made: sys.exit(text) behind __del__", [*DEL, "", "unknown optimizer 'adamx'"], C.EXIT, "code", "exit code 1: unknown optimizer"),
    end("made: exit code 1 behind a progress bar", [" 12%|#2   | 12/100 [00:03<00:20,  4.1it/s]"], C.EXIT, "unknown", "exit code 1"),
    end("made: a bad sample, then a callback of concurrent.futures", [*tb(BAD), *CALLBACK], C.EXCEPTION, "data", BAD),
    end("made: a device error, then a callback of concurrent.futures", [*tb(ECC), *CALLBACK], C.DEVICE, "device", "RuntimeError: CUDA error: uncorr"),
    end("made: only a callback of concurrent.futures has failed", CALLBACK, C.EXIT, "unknown"),
    end("made: nobody reads the script's output any more", STDOUT, C.EXIT, "unknown", "exit code 120", exit_code=120),
    end("made: a bad sample, and nobody reads the script's output", [*tb(BAD), *STDOUT], C.EXCEPTION, "data", BAD),
    end("made: exit code 3", ["bye"], C.EXIT, "unknown", "exit code 3", exit_code=3),
    end("made: a traceback is logged, then sys.exit(1)", [*tb("KeyError: 'train'"), "", "giving up"], C.EXCEPTION, "data", "KeyError: 'train'"),
    end("made: an option that argparse refuses", ["usage: train.py [-h]", "train.py: error: unrecognized arguments: --lrr 3"], C.EXCEPTION, "code", exit_code=2),
)

SERVICE_ENDS: Final = (
    service("trials/users P0-1", f"RuntimeError: {POOL}"),
    service("wandb/wandb#4217", f"requests.exceptions.ConnectionError: {POOL}", lib("wandb/sdk/lib/retry.py:__call__"), lib("requests/adapters.py:send")),
    service("wandb/wandb#10025", "wandb.errors.CommError: Run initialization has timed out after 90.0 sec. ", lib("wandb/sdk/wandb_init.py:init")),
    service("wandb/wandb#5550", "requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='api.wandb.ai', port=443): Connection to api.wandb.ai timed out.", lib("requests/adapters.py:send")),
    service("wandb/server#83", "socket.gaierror: [Errno -2] Name or service not known", lib("urllib3/util/connection.py:create_connection"), std("socket.py:getaddrinfo")),
    service("mlflow/mlflow#545", "mlflow.exceptions.MlflowException: API request to http://t:5000/api/2.0/mlflow/runs/create failed with exception HTTPConnectionPool(host='t', port=5000): Max retries exceeded with url: / (Caused by ResponseError('too many 500 error responses'))", lib("mlflow/utils/rest_utils.py:http_request")),
    service("trials/cls: mlflow", "ConnectionRefusedError: [Errno 111] Connection refused", lib("mlflow/tracking.py:log")),
    service("trials/cls: redis", "redis.exceptions.ConnectionError: Error 111 connecting to cache:6379. Connection refused.", lib("redis/connection.py:connect")),
    service("made: redis is loading", "redis.exceptions.BusyLoadingError: Redis is loading the dataset in memory", lib("redis/connection.py:read_response")),
    service("made: redis times out", "redis.exceptions.TimeoutError: Timeout reading from socket", lib("redis/connection.py:read_response")),
    service("huggingface_hub#2060", "huggingface_hub.utils._errors.HfHubHTTPError: 503 Server Error: Service Temporarily Unavailable for url: https://hf/m.safetensors", lib("huggingface_hub/utils/_errors.py:hf_raise_for_status")),
    service("huggingface_hub#1516", "HfHubHTTPError: 504 Server Error: Gateway Time-out for url: https://hf/api", lib("huggingface_hub/utils/_errors.py:hf_raise_for_status")),
    service("optimum-neuron#369", "requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: https://s3/x", lib("requests/models.py:raise_for_status")),
    service("made: the hub can't be reached", "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the requested files in the local cache. Connection error", lib("huggingface_hub/file_download.py:hf_hub_download")),
    service("made: too many requests", "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://hf/api", lib("requests/models.py:raise_for_status")),
    service("trials/cls: s3", 'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3/"', lib("botocore/httpsession.py:send")),
    service("trials/cls: s3 reset", 'botocore.exceptions.ConnectionClosedError: Connection was closed before we received a valid response from endpoint URL: "https://s3/ckpt".', lib("botocore/httpsession.py:send")),
    service("made: s3 slow down", "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation: Please reduce your request rate.", lib("botocore/client.py:_make_api_call")),
    service("made: s3fs translates an outage into EIO", "OSError: [Errno 5] An error occurred (InternalError) when calling the PutObject operation (reached max retries: 4): We encountered an internal error. Please try again.", lib("s3fs/core.py:_error_wrapper")),
    service("made: a mail server hangs up", "smtplib.SMTPServerDisconnected: Connection unexpectedly closed", std("smtplib.py:getreply")),
    data("made: a tracker refuses the token", "aim.ext.transport.message_utils.UnauthorizedRequestError: token", lib("aim/ext/transport/client.py:_raise")),
    service("made: s3 read timeout", 'botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL: "https://s3/x"', lib("botocore/httpsession.py:send")),
    service("made: a reset inside botocore", "ConnectionResetError: [Errno 104] Connection reset by peer", lib("botocore/httpsession.py:send"), lib("urllib3/connectionpool.py:urlopen"), std("ssl.py:read")),
    service("made: gcs", "google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage.googleapis.com/b/o: Service Unavailable", lib("google/cloud/storage/client.py:get")),
    service("made: gcs retry", "google.api_core.exceptions.RetryError: Timeout of 120.0s exceeded, last exception: 503", lib("google/api_core/retry.py:retry_target")),
    service("made: azure", "azure.core.exceptions.ServiceRequestError: <urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution", lib("azure/core/pipeline/transport/_requests_basic.py:send")),
    service("made: httpx", "httpx.ConnectTimeout: timed out", lib("httpx/_transports/default.py:map_httpcore_exceptions")),
    service("made: httpx read error", "httpx.ReadError: [Errno 104] Connection reset by peer", lib("httpx/_transports/default.py:map_httpcore_exceptions")),
    service("made: httpx protocol", "httpx.RemoteProtocolError: Server disconnected without sending a response.", lib("httpx/_transports/default.py:map_httpcore_exceptions")),
    service("made: aiohttp", "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host t:443 ssl:default [Connect call failed ('10.0.0.7', 443)]", lib("aiohttp/connector.py:_create_direct_connection")),
    service("made: aiohttp disconnected", "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected", lib("aiohttp/client.py:_request")),
    service("made: mongo", "pymongo.errors.ServerSelectionTimeoutError: db:27017: [Errno 111] Connection refused, Timeout: 30s", lib("pymongo/topology.py:select_servers")),
    service("made: mongo auto reconnect", "pymongo.errors.AutoReconnect: db:27017: connection closed", lib("pymongo/pool.py:_raise_connection_failure")),
    service("mlflow/mlflow#3727", "psycopg2.OperationalError: FATAL:  remaining connection slots are reserved for non-replication superuser and rds_superuser connections", lib("psycopg2/__init__.py:connect")),
    service("made: postgres refuses", 'psycopg2.OperationalError: connection to server at "db" (10.0.0.7), port 5432 failed: Connection refused', lib("psycopg2/__init__.py:connect")),
    service("made: postgres closes", "psycopg.OperationalError: server closed the connection unexpectedly", lib("psycopg/connection.py:wait")),
    service("made: postgres starts", "sqlalchemy.exc.OperationalError: (psycopg2.OperationalError) FATAL:  the database system is starting up", lib("sqlalchemy/engine/default.py:connect")),
    service("optuna/optuna#879", "sqlalchemy.exc.InternalError: (pymysql.err.InternalError) (1205, 'Lock wait timeout exceeded; try restarting transaction')", lib("sqlalchemy/engine/default.py:do_execute")),
    service("made: mysql went away", "pymysql.err.OperationalError: (2006, 'MySQL server has gone away')", lib("pymysql/connections.py:query")),
    service("made: kafka", "kafka.errors.NoBrokersAvailable: NoBrokersAvailable", lib("kafka/client_async.py:check_version")),
    service("made: grpc", 'grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "failed to connect to all addresses"', lib("grpc/_channel.py:_end_unary_response_blocking")),
    service("made: grpc deadline", "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.DEADLINE_EXCEEDED", lib("grpc/_channel.py:_end_unary_response_blocking")),
    service("made: elastic", "elastic_transport.ConnectionTimeout: Connection timed out", lib("elastic_transport/_transport.py:perform_request")),
    service("made: urllib", "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>", std("urllib/request.py:do_open")),
    service("made: urllib 502", "urllib.error.HTTPError: HTTP Error 502: Bad Gateway", std("urllib/request.py:http_error_default")),
    service("made: http.client", "http.client.RemoteDisconnected: Remote end closed connection without response", std("http/client.py:_read_status")),
    service("made: smtp", "ConnectionRefusedError: [Errno 111] Connection refused", std("smtplib.py:connect"), std("socket.py:create_connection")),
    service("made: comet", "ConnectionResetError: [Errno 104] Connection reset by peer", lib("comet_ml/connection.py:send")),
    service("made: neptune", "neptune.exceptions.NeptuneConnectionLostException: Connection to the server was lost. Connection error", lib("neptune/internal/backends/utils.py:wrapper")),
    service("made: clearml", "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.clear.ml', port=443): Read timed out. (read timeout=30)", lib("clearml/backend_api/session/session.py:send")),
    service("made: a client that no table names", "ConnectionRefusedError: [Errno 111] Connection refused", lib("feature_store_sdk/client.py:get"), std("socket.py:create_connection")),
    service("made: the same with a timeout", "TimeoutError: [Errno 110] Connection timed out", lib("housesdk/api.py:log"), std("socket.py:connect")),
    service("made: websocket", "websockets.exceptions.ConnectionClosedError: no close frame received or sent", lib("websockets/legacy/protocol.py:recv")),
    service("made: zookeeper", "kazoo.exceptions.SessionExpiredError: SessionExpired", lib("kazoo/client.py:get")),
    service("made: kubernetes", "kubernetes.client.exceptions.ApiException: (503)\nReason: Service Unavailable", lib("kubernetes/client/rest.py:request")),
    service("made: ssl", "requests.exceptions.SSLError: HTTPSConnectionPool(host='t', port=443): Max retries exceeded with url: / (Caused by SSLError(SSLEOFError(8, 'EOF occurred in violation of protocol')))", lib("requests/adapters.py:send")),
    service("made: proxy", "requests.exceptions.ProxyError: HTTPSConnectionPool(host='t', port=443): Max retries exceeded with url: / (Caused by ProxyError('Unable to connect to proxy'))", lib("requests/adapters.py:send")),
    service("made: chunked", "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(512 bytes read)', IncompleteRead(512 bytes read))", lib("requests/models.py:generate")),
    service("made: a model's server", "openai.InternalServerError: Error code: 503 - overloaded", lib("openai/_base_client.py:_request")),
    service("made: the same can't be reached", "openai.APIConnectionError: Connection error.", lib("openai/_base_client.py:_request")),
    service("made: transformers", "OSError: We couldn't connect to 'https://huggingface.co' to load this file", lib("transformers/utils/hub.py:cached_file")),
    service("made: datasets", "ConnectionError: Couldn't reach 'org/set' on the Hub (ConnectionError)", lib("datasets/load.py:dataset_module_factory")),
    service("made: fsspec", "fsspec.exceptions.FSTimeoutError", lib("fsspec/asyn.py:sync")),
    service("mozilla-releng/shipit#153 kind: the database restarts", "sqlalchemy.exc.OperationalError: (psycopg2.OperationalError) SSL connection has been closed unexpectedly", lib("sqlalchemy/engine/default.py:do_execute")),
    service("made: asyncpg", "asyncpg.exceptions.ConnectionDoesNotExistError: connection was closed in the middle of operation", lib("asyncpg/connection.py:fetch")),
    service("made: Azure takes too long", "azure.core.exceptions.HttpResponseError: Operation could not be completed within the specified time.\nErrorCode:OperationTimedOut", lib("azure/storage/blob/_shared/response_handlers.py:process_storage_error")),
    service("made: minio", "minio.error.S3Error: S3 operation failed; code: InternalError, message: We encountered an internal error, please try again., resource: /b/o", lib("minio/api.py:_execute")),
    service("made: a resumable upload", "google.resumable_media.common.InvalidResponse: ('Request failed with status code', 503, 'Expected one of', <HTTPStatus.OK: 200>)", lib("google/resumable_media/_helpers.py:require_status_code")),
    service("made: a parameter store", "botocore.errorfactory.TooManyRequestsException: An error occurred (TooManyRequestsException) when calling the GetParameter operation: Rate exceeded", lib("botocore/client.py:_make_api_call")),
    service("made: an internal failure of AWS", "botocore.exceptions.ClientError: An error occurred (InternalFailure) when calling the AssumeRole operation: Unknown", lib("botocore/client.py:_make_api_call")),
    service("made: pycurl", "pycurl.error: (28, 'Connection timed out after 300001 milliseconds')"),
    service("made: neptune_scale", "neptune_scale.exceptions.NeptuneConnectionLostError: the server does not answer", lib("neptune_scale/sync/errors_tracking.py:run")),
    service("made: redis is full", "redis.exceptions.OutOfMemoryError: command not allowed when used memory > 'maxmemory'.", lib("redis/connection.py:read_response")),
    service("made: Databricks limits requests", "mlflow.exceptions.RestException: REQUEST_LIMIT_EXCEEDED: Exceeded the requests of a second", lib("mlflow/utils/rest_utils.py:verify_rest_response")),
    service("made: Google's API client", "googleapiclient.errors.HttpError: <HttpError 503 when requesting https://www.googleapis.com/upload/drive/v3/files returned \"Backend Error\">", lib("googleapiclient/http.py:execute")),
    service("made: a database's name that DNS doesn't know now", "pymysql.err.OperationalError: (2005, \"Unknown MySQL server host 'db' (-3)\")", lib("pymysql/connections.py:connect")),
    service("made: awscrt", "awscrt.exceptions.AwsCrtError: AwsCrtError(name='AWS_IO_SOCKET_TIMEOUT', message='socket operation timed out.', code=1048)", lib("awscrt/s3.py:make_request")),
    end("made: an outage behind the program's own error", chain(tb("ConnectionRefusedError: [Errno 111] Connection refused", MAIN, lib("requests/adapters.py:send")), tb("RuntimeError: can't upload"), link=CAUSED), C.SERVICE, "service", "RuntimeError: can't upload"),
    end("made: a bug in the handler of an outage", chain(tb("requests.exceptions.ConnectTimeout: timed out", MAIN, lib("requests/adapters.py:send")), tb("TypeError: unsupported operand")), C.SERVICE, "service"),
    end("made: a worker that reads from s3", tb("botocore.exceptions.EndpointConnectionError: Caught EndpointConnectionError in DataLoader worker process 0.\nOriginal " + "\n".join(tb('botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3/"', lib("torch/utils/data/_utils/worker.py:_worker_loop"), "data.py:read", lib("botocore/httpsession.py:send"))), *LOADER), C.SERVICE, "service"),
    end("made: an outage, then atexit and __del__", tb(f"requests.exceptions.ConnectionError: {POOL}", MAIN, lib("requests/adapters.py:send")) + ATEXIT + DEL, C.SERVICE, "service"),
)

STORAGE_ENDS: Final = tuple(
    end(source, lines, C.STORAGE, "storage") for source, lines in (
        ("trials/jobs 11", tb("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 1472 vs 1376", *SAVE)),
        ("hiyouga/LlamaFactory#1223", tb("RuntimeError: [enforce fail at inline_container.cc:445] . PytorchStreamWriter failed writing file data/176: file write failed", *SAVE)),
        ("SWivid/F5-TTS#458", prefixed(tb("RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file data.pkl: file write failed", *SAVE))),
        ("innnky/so-vits-svc#46", chain(tb("RuntimeError: [enforce fail at inline_container.cc:445] . PytorchStreamWriter failed writing file data/271: file write failed", *SAVE), tb("RuntimeError: [enforce fail at inline_container.cc:325] . unexpected pos 190007680 vs 190007572", *SAVE))),
        ("pytorch/pytorch#10577", tb("RuntimeError: write(): fd 29 failed with Input/output error", *SAVE)),
        ("made: ENOSPC", tb("OSError: [Errno 28] No space left on device", *SAVE)),
        ("made: ENOSPC with a path", tb("OSError: [Errno 28] No space left on device: '/ckpt/step_7.tmp'", MAIN, std("shutil.py:copyfile"))),
        ("made: EDQUOT", tb("OSError: [Errno 122] Disk quota exceeded", *SAVE)),
        ("made: EIO", tb("OSError: [Errno 5] Input/output error: '/data/shard-0007.tar'")),
        ("made: ESTALE", tb("OSError: [Errno 116] Stale file handle")),
        ("made: EROFS", tb("OSError: [Errno 30] Read-only file system: '/ckpt'", MAIN, std("os.py:makedirs"))),
        ("made: safetensors", tb("safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: \"No space left on device\" })", lib("safetensors/torch.py:save_file"))),
        ("made: numpy writes", tb("OSError: 1048576 requested and 4096 written", lib("numpy/lib/format.py:write_array"))),
        ("made: HDF5", tb("OSError: [Errno 28] Can't write data (file write failed: errno = 28, error message = 'No space left on device')", lib("h5py/_hl/dataset.py:__setitem__"))),
        ("made: a FUSE mount is gone", tb("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/s3/shard-7'")),
        ("made: sqlite", tb("sqlite3.OperationalError: database or disk is full")),
        ("made: logs on a full disk", tb("OSError: [Errno 28] No space left on device", MAIN, lib("tensorboard/summary/writer/event_file_writer.py:flush"))),
        ("trials/ends worker_raise", tb("OSError: Caught OSError in DataLoader worker process 0.\nOriginal " + "\n".join(tb("OSError: [Errno 5] Input/output error: '/data/shard-0007.tar'", lib("torch/utils/data/_utils/worker.py:_worker_loop"), lib("torch/utils/data/_utils/fetch.py:fetch"), "data.py:__getitem__")), *LOADER)),
        ("made: a full disk, then __del__", tb("OSError: [Errno 28] No space left on device", *SAVE) + DEL),
        ("made: EUCLEAN", tb("OSError: [Errno 117] Structure needs cleaning: '/ckpt/step_7.pt'", *SAVE)),
        ("made: BeeGFS without a target", tb("OSError: [Errno 70] Communication error on send: '/beegfs/shard-7.bin'", MAIN, "data.py:read")),
        ("made: a checksum of the file system", tb("OSError: [Errno 74] Bad message: '/data/shard-7.bin'", MAIN, "data.py:read")),
        ("made: an expired key of Kerberos", tb("OSError: [Errno 127] Key has expired: '/home/u/out'", MAIN, std("os.py:makedirs"))),
        ("made: a number of the kernel's own", tb("OSError: [Errno 512] Unknown error 512: '/mnt/nfs/a'", MAIN, "data.py:read")),
        ("made: a full disk, in Go's words", tb("RuntimeError: write /ckpt/a.tmp: no space left on device")),
        ("made: Ray's disk", tb("ray.exceptions.OutOfDiskError: Local disk is full\nThe object cannot be created because the local object store is full")),
        ("made: MPI-IO", tb("mpi4py.MPI.Exception: MPI_ERR_NO_SPACE: not enough space")),
        ("made: a full disk while a bug is handled", chain(tb("KeyError: 'a'"), tb("OSError: [Errno 28] No space left on device", *SAVE))),
    )
)

MEMORY_ENDS: Final = tuple(
    end(source, lines, C.HOST_MEMORY, "memory") for source, lines in (
        ("eriklindernoren/PyTorch-YOLOv3#561", tb("RuntimeError: DataLoader worker (pid 5645) is killed by signal: Killed. ", *LOADER)),
        ("trials/cls exited", tb("RuntimeError: DataLoader worker (pid(s) 8864) exited unexpectedly", *LOADER)),
        ("made: bus error", tb("RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", *LOADER)),
        ("trials/ends worker_oom", tb("ConnectionResetError: [Errno 104] Connection reset by peer", *LOADER, std("multiprocessing/resource_sharer.py:get_connection"))),
        ("trials/cls loader refused", tb("ConnectionRefusedError: [Errno 111] Connection refused", *LOADER)),
        ("made: the worker's pipe ends", tb("EOFError", *LOADER, std("multiprocessing/connection.py:_recv"))),
        ("made: killed worker, with both", chain(tb("ConnectionResetError: [Errno 104] Connection reset by peer", *LOADER), tb("RuntimeError: DataLoader worker (pid(s) 9) exited unexpectedly", *LOADER), link=CAUSED)),
        ("made: MemoryError", tb("MemoryError")),
        ("made: numpy", tb("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array")),
        ("made: fork", tb("OSError: [Errno 12] Cannot allocate memory", MAIN, std("subprocess.py:_execute_child"))),
        ("made: CPU allocator", tb("RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 51539607552 bytes.")),
        ("made: shared memory is full", tb("RuntimeError: unable to write to file </torch_7318_12>: No space left on device (28)", lib("torch/multiprocessing/reductions.py:reduce_storage"))),
        ("made: NCCL's shared memory", prefixed(tb("torch.distributed.DistBackendError: NCCL error, unhandled system error\nncclSystemError: System call\nLast error:\nError while creating shared memory segment /dev/shm/nccl-9aQ (size 9637888), error: No space left on device (28)", *ALLREDUCE))),
        ("made: a worker of torchdata's loader", tb("ConnectionResetError: [Errno 104] Connection reset by peer", MAIN, lib("torchdata/stateful_dataloader/stateful_dataloader.py:_try_get_data"), std("multiprocessing/connection.py:recv"))),
        ("made: a JVM's heap", tb("py4j.protocol.Py4JJavaError: An error occurred while calling o42.collect.\n: java.lang.OutOfMemoryError: Java heap space", MAIN, lib("py4j/protocol.py:get_return_value"))),
        ("made: Ray", tb("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.")),
        ("made: bad_alloc", ["terminate called after throwing an instance of 'std::bad_alloc'", "  what():  std::bad_alloc"]),
    )
)

PEER_ENDS: Final = tuple(
    end(source, lines, C.COMMUNICATION, "peer") for source, lines in (
        ("torch 2.13: gloo, reset", tb("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:15012: Connection reset by peer.", *ALLREDUCE)),
        ("torch 2.13: gloo, closed", tb("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7318.", MAIN, lib("torch/autograd/graph.py:_engine_run_backward"))),
        ("torch 2.13: gloo, time-out", tb("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete", *ALLREDUCE)),
        ("made: gloo, no network", tb("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [10.0.0.3]:4242: Network is unreachable", *ALLREDUCE)),
        ("made: gloo, no connection", tb("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:446] writev [10.0.0.3]:4242: Transport endpoint is not connected", *ALLREDUCE)),
        ("made: a store of files", tb("RuntimeError: Timeout waiting for key: default_pg/0/1 after 1800000 ms", *ALLREDUCE)),
        ("made: an aborted communicator", prefixed(tb("RuntimeError: NCCL communicator was aborted on rank 2.", *ALLREDUCE))),
        ("made: a name in the rendezvous that nobody knows", tb("socket.gaierror: [Errno -2] Name or service not known", MAIN, lib("torch/distributed/rendezvous.py:_create_c10d_store"), std("socket.py:getaddrinfo"))),
        ("made: UCX", tb("ucp._libs.exceptions.UCXConnectionReset: <stream_recv>: Connection reset by remote peer", MAIN, lib("ucp/core.py:recv"))),
        ("made: MPI, a process is gone", tb("mpi4py.MPI.Exception: MPI_ERR_PROC_FAILED: Process failure")),
        ("torch 2.13: store", tb("torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//nokey", *ALLREDUCE)),
        ("torch 2.13: network", tb("torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying to connect to (a, 29500).", *ALLREDUCE)),
        ("trials/cls eaddrinuse", tb("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, code: -98, name: EADDRINUSE", lib("torch/distributed/rendezvous.py:x"))),
        ("made: NCCL remote error", tb("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, remote process exited or there was a network error\nncclRemoteError: A call failed", *ALLREDUCE)),
        ("NVIDIA/Megatron-LM#935", ["terminate called after throwing an instance of 'c10::DistBackendError'", "  what():  [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600012 milliseconds before timing out."]),
        ("made: a name of a rank's host", tb("torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (node7, 29500). The IPv4 network addresses of (node7, 29500) cannot be retrieved (gai error: -2 - Name or service not known).", lib("torch/distributed/rendezvous.py:_create_c10d_store"))),
        ("made: torch RPC", tb("ConnectionResetError: [Errno 104] Connection reset by peer", MAIN, lib("torch/distributed/rpc/api.py:rpc_sync"))),
        ("made: mpi4py", tb("mpi4py.MPI.Exception: MPI_ERR_PROC_FAILED: Process failure, Connection reset by peer")),
        ("made: Horovod", tb("horovod.common.exceptions.HorovodInternalError: [gloo/transport/tcp/pair.cc:589] Read error: Connection reset by peer", lib("horovod/torch/mpi_ops.py:synchronize"))),
        ("made: lost peer, then a bug in the clean-up", prefixed(chain(tb("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer", *ALLREDUCE), tb("AttributeError: 'NoneType' object has no attribute 'close'")))),
        ("made: lost peer, then atexit", tb("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer", *ALLREDUCE) + ATEXIT),
        ("made: monitored barrier", tb("RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.", *ALLREDUCE)),
        ("made: rendezvous", tb("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", lib("torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:x"))),
        ("made: DeepSpeed", tb("TimeoutError: barrier", MAIN, lib("deepspeed/comm/comm.py:barrier"))),
    )
)

DEVICE_ENDS: Final = (
    *(end(f"cudaError: {text}", prefixed(tb(f"torch.AcceleratorError: CUDA error: {text}")), C.DEVICE, "device") for text in (
        "uncorrectable ECC error encountered", "uncorrectable NVLink error detected during the execution", "unknown error", "CUDA-capable device(s) is/are busy or unavailable", "system not yet initialized")),
    *(end(f"cudaError: {text}", tb(f"RuntimeError: CUDA error: {text}"), C.KERNEL_FAULT, "device") for text in ("an illegal memory access was encountered", "unspecified launch failure", "misaligned address")),
    end("made: off the bus", tb("RuntimeError: GPU has fallen off the bus"), C.DEVICE, "device"),
    end("made: no driver", tb("RuntimeError: No CUDA GPUs are available", MAIN, lib("torch/cuda/__init__.py:_lazy_init")), C.DEVICE, "device"),
    end("made: told by NCCL", tb("torch.distributed.DistBackendError: NCCL error\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 214 'uncorrectable ECC error encountered'", *ALLREDUCE), C.DEVICE, "device"),
    end("made: a device error, then a failed upload in the handler", chain(tb(ECC), tb(f"requests.exceptions.ConnectionError: {POOL}", MAIN, lib("requests/adapters.py:send"))), C.DEVICE, "device"),
    end("made: a device error, then a full disk in the handler", chain(tb(ECC), tb("OSError: [Errno 28] No space left on device", *SAVE)), C.DEVICE, "device"),
    end("made: a device of Intel's is lost", tb("RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"), C.KERNEL_FAULT, "device"),
    end("made: a forked worker uses CUDA", tb("RuntimeError: Caught RuntimeError in DataLoader worker process 0.\nOriginal " + "\n".join(tb("RuntimeError: CUDA error: initialization error", lib("torch/utils/data/_utils/worker.py:_worker_loop"), lib("torch/utils/data/_utils/fetch.py:fetch"), "data.py:__getitem__")), *LOADER), C.PROGRAM, "code"),
    end("made: the rank's own CUDA can't begin", tb("RuntimeError: CUDA error: initialization error", MAIN, lib("torch/cuda/__init__.py:_lazy_init")), C.DEVICE, "device"),
    *(end(f"nvml.h: {name}", tb(f"pynvml.NVMLError_{name}: {text}", MAIN, lib("pynvml.py:_nvmlCheckReturn")), C.EXCEPTION, "code") for name, text in (
        ("NotSupported", "Not Supported"), ("InvalidArgument", "Invalid Argument"), ("Uninitialized", "Uninitialized"), ("NoPermission", "Insufficient Permissions"), ("LibraryNotFound", "NVML Shared Library Not Found"))),
    end("made: CuPy is out of memory", tb("cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory"), C.DEVICE_MEMORY, "code"),
    end("made: a device error, then a bug in the handler", chain(tb(ECC), tb("TypeError: 'NoneType' object is not callable")), C.DEVICE, "device"),
    end("made: a device error, then a lost peer", chain(tb(ECC), tb("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer", *ALLREDUCE)), C.DEVICE, "device"),
    end("made: two NCCLs", tb("torch.distributed.DistBackendError: NCCL error, invalid usage\nncclInvalidUsage: x\nLast error:\nMismatched NCCL version detected : rank 0 version 22703 rank 1 version 22105", *ALLREDUCE), C.MIXED_NCCL, "code"),
)

KILL_ENDS: Final = (
    end("pytorch#26344 kind: mp.spawn", tb("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL"), C.KILLED, "killer"),
    end("accelerate launch", tb("subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>."), C.KILLED, "killer"),
    end("made: a shell's child", tb("subprocess.CalledProcessError: Command 'train.sh' returned non-zero exit status 137."), C.KILLED, "killer"),
    end("made: joblib", tb("joblib.externals.loky.process_executor.TerminatedWorkerError: A worker process managed by the executor was unexpectedly terminated. The exit codes of the workers are {SIGKILL(-9)}"), C.KILLED, "killer"),
    end("trials/jobs 4: a stop reaches the workers", tb("RuntimeError: DataLoader worker (pid 5186) is killed by signal: Terminated. ", *LOADER), C.USER, "person"),
    end("made: Ctrl-C", tb("KeyboardInterrupt"), C.USER, "person"),
    end("made: Ctrl-C while a service is away", chain(tb("requests.exceptions.ConnectTimeout: timed out", MAIN, lib("requests/adapters.py:send")), tb("KeyboardInterrupt")), C.USER, "person"),
)

CHILD_ENDS: Final = (
    *(end(f"pytorch#26344 kind: a child of mp.spawn, SIG{name}", spawned(f"ProcessExitedException: process 1 terminated with signal SIG{name}"), cause, culprit)
      for name, cause, culprit in (("TERM", C.USER, "person"), ("HUP", C.USER, "person"), ("INT", C.USER, "person"),
                                   ("SEGV", C.EXCEPTION, "code"), ("BUS", C.EXCEPTION, "code"), ("ABRT", C.EXCEPTION, "code"))),
    end("Lightning ddp_spawn: a child was killed", tb("torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL", MAIN, lib("lightning/pytorch/strategies/launchers/multiprocessing.py:launch"), lib("torch/multiprocessing/spawn.py:join")), C.KILLED, "killer"),
    *(end(f"an inner torchrun: exit code {code}", tb(ELASTIC_TABLE.format(code=code), MAIN, lib("torch/distributed/run.py:run"), lib("torch/distributed/launcher/api.py:launch_agent")), cause, culprit)
      for code, cause, culprit in ((-9, C.KILLED, "killer"), (-15, C.USER, "person"), (-11, C.EXCEPTION, "code"), (-6, C.EXCEPTION, "code"), (1, C.EXCEPTION, "code"),
                                   (137, C.KILLED, "killer"), (143, C.USER, "person"), (139, C.EXCEPTION, "code"))),
    # A worker's end is known from torch's first error, whatever the second says.
    *(end(f"facebookresearch/pycls#146 kind: a loader's worker {how}, then it is gone", chain(tb(f"RuntimeError: DataLoader worker (pid 624) {how} ", *LOADER), tb("RuntimeError: DataLoader worker (pid(s) 624) exited unexpectedly", *LOADER), link=CAUSED), cause, culprit)
      for how, cause, culprit in (("is killed by signal: Segmentation fault.", C.EXCEPTION, "data"), ("is killed by signal: Aborted.", C.EXCEPTION, "data"), ("exited unexpectedly with exit code 1.", C.EXCEPTION, "data"),
                                  ("is killed by signal: Killed.", C.HOST_MEMORY, "memory"), ("is killed by signal: Bus error.", C.HOST_MEMORY, "memory"),
                                  ("is killed by signal: Terminated.", C.USER, "person"), ("is killed by signal: User defined signal 1.", C.USER, "person"))),
    *(end(f"made: a signal to the group: {name}", tb(f"RuntimeError: DataLoader worker (pid 624) is killed by signal: {name}. ", *LOADER), C.USER, "person") for name in ("User defined signal 1", "User defined signal 2", "Hangup", "Interrupt")),
    end("made: a pool that lost a process before", tb("concurrent.futures.process.BrokenProcessPool: A child process terminated abruptly, the process pool is not usable anymore", MAIN, std("concurrent/futures/process.py:submit")), C.KILLED, "killer"),
    end("accelerate launch: its script crashed", tb("subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGSEGV: 11>.", MAIN, lib("accelerate/commands/launch.py:simple_launcher")), C.EXCEPTION, "code"),
    end("accelerate launch: its script was killed", tb("subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 137.", MAIN, lib("accelerate/commands/launch.py:simple_launcher")), C.KILLED, "killer"),
    data("made: a tool crashes on a damaged file", "subprocess.CalledProcessError: Command '['ffmpeg', '-i', 'a.mp4']' died with <Signals.SIGSEGV: 11>.", "data.py:decode", std("subprocess.py:check_output")),
    data("made: a tool ends with 139", "subprocess.CalledProcessError: Command 'decode.sh' returned non-zero exit status 139.", "data.py:decode", std("subprocess.py:run")),
    end("made: mp.spawn passes a bug on", spawned("ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\n" + "\n".join(tb("NameError: name 'prnt' is not defined", lib("torch/multiprocessing/spawn.py:_wrap"), "train.py:work"))), C.PROGRAM, "code", "NameError: name 'prnt'"),
    end("made: mp.spawn passes a bug on, as recorded", [], C.PROGRAM, "code", "NameError: name 'prnt'", record=recorded("torch.multiprocessing.spawn.ProcessRaisedException", "\n\n-- Process 0 terminated with the following error:\n" + "\n".join(tb("NameError: name 'prnt' is not defined", "train.py:work")))),
    end("made: mp.spawn passes a lost peer on", spawned("ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\n" + "\n".join(tb("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7318", *ALLREDUCE))), C.COMMUNICATION, "peer"),
    end("made: mp.spawn passes a device error on", spawned("ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\n" + "\n".join(tb(ECC, "train.py:work"))), C.DEVICE, "device"),
    end("made: a child of mp.spawn ends with code 1", spawned("ProcessExitedException: process 0 terminated with exit code 1"), C.EXCEPTION, "code"),
    # Lines without a traceback, as some programs print them before they end.
    end("made: a bare line of a closed connection", ["step 7", "RuntimeError: Connection closed by peer [10.0.0.3]:4711"], C.COMMUNICATION, "peer"),
    end("made: a bare line of gloo", ["RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:4711"], C.COMMUNICATION, "peer"),
    end("made: a bare reset", ["ConnectionResetError: [Errno 104] Connection reset by peer"], C.COMMUNICATION, "peer"),
    end("made: a bare full disk", ["OSError: [Errno 28] No space left on device: '/ckpt/a.pt'"], C.STORAGE, "storage"),
    end("made: a bare service", ["requests.exceptions.ConnectionError: HTTPSConnectionPool(host='tracker', port=443): Max retries exceeded with url: /"], C.SERVICE, "service"),
    end("made: a bare value", ["ValueError: bad config"], C.EXIT, "code", "exit code 1: ValueError: bad config"),
    end("made: words of a closed connection, no error", ["INFO Connection closed by peer, reconnecting"], C.EXIT, "unknown"),
    # A full disk under torch.save, and what follows it.
    end("made: torch.save on a full disk, by the first cause", chain(tb("OSError: [Errno 28] No space left on device", *SAVE), tb("RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 1472 vs 1376", *SAVE)), C.STORAGE, "storage"),
    end("made: a traceback that the script logs, then sys.exit(1)", [*tb("ValueError: no such split: dev"), "training failed"], C.EXCEPTION, "data", "ValueError: no such split"),
    end("made: a loader's worker is killed, behind a device's words", tb("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", *LOADER), C.HOST_MEMORY, "memory"),
    data("made: a loader's worker aborts by itself", "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Aborted. ", *LOADER[1:]),
    data("made: a pipe to the script's own ffmpeg", "BrokenPipeError: [Errno 32] Broken pipe", "video.py:write", std("subprocess.py:_stdin_write")),
)

CODE_ENDS: Final = (
    code("made: a name", "NameError: name 'modle' is not defined"),
    code("made: a type", "TypeError: forward() got an unexpected keyword argument 'mask'"),
    code("made: an attribute", "AttributeError: 'Net' object has no attribute 'heads'"),
    code("made: inside a client", "TypeError: Object of type Tensor is not JSON serializable", lib("wandb/sdk/wandb_run.py:log"), std("json/encoder.py:default")),
    code("made: inside torch.distributed", "TypeError: all_reduce(): argument 'tensor' must be Tensor, not float", lib("torch/distributed/distributed_c10d.py:all_reduce")),
    code("made: device-side assert", "RuntimeError: CUDA error: device-side assert triggered"),
    code("made: MPI, a message that is too long", "mpi4py.MPI.Exception: MPI_ERR_TRUNCATE: message truncated"),
    code("made: mismatch", "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running", lib("torch/distributed/distributed_c10d.py:all_reduce")),
    data("made: a batch", BAD),
    data("made: shapes", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x8 and 4x4)", "model.py:forward"),
    data("made: a key", "KeyError: 'labels'"),
    data("made: a file", "FileNotFoundError: [Errno 2] No such file or directory: '/data/a'"),
    data("made: no permission", "PermissionError: [Errno 13] Permission denied: '/data/a'"),
    data("made: an assertion", "AssertionError: loss is nan"),
    data("made: a module", "ModuleNotFoundError: No module named 'flash_attn'"),
    data("made: text", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    data("made: an image", "PIL.UnidentifiedImageError: cannot identify image file '/data/7.jpg'", lib("PIL/Image.py:open")),
    data("made: a division", "ZeroDivisionError: division by zero"),
    data("made: words of a device in data", "ValueError: row 7: NVLink, Xid and CUDA error: are no labels"),
    data("made: words of a peer in data", "KeyError: 'Connection reset by peer'"),
    data("made: words of a disk in data", "ValueError: No space left on device is no label"),
    data("made: words of memory in data", "ValueError: column 'out of shared memory'"),
    data("made: words of a service in data", "ValueError: text '503 Service Unavailable' is no number"),
    data("made: the script's own pipe", "BrokenPipeError: [Errno 32] Broken pipe", "prep.py:feed"),
    data("made: the script's own child", "EOFError", std("multiprocessing/connection.py:_recv")),
    data("made: the script's own pipe below DDP", "BrokenPipeError: [Errno 32] Broken pipe", lib("torch/nn/parallel/distributed.py:forward"), lib("torch/nn/modules/module.py:_call_impl"), "model.py:forward", std("subprocess.py:_stdin_write")),
    data("made: a simulator's process that died", "ConnectionResetError: [Errno 104] Connection reset by peer", lib("stable_baselines3/common/vec_env/subproc_vec_env.py:step_wait"), std("multiprocessing/connection.py:recv")),
    data("made: a compiler takes too long", "subprocess.TimeoutExpired: Command '['ptxas', 'a.ptx']' timed out after 60 seconds", lib("triton/backends/nvidia/compiler.py:make_cubin"), std("subprocess.py:run")),
    data("made: a queue", "queue.Empty", std("queue.py:get")),
    data("made: open files", "OSError: [Errno 24] Too many open files", lib("torch/multiprocessing/reductions.py:x")),
    data("trials/cls ancdata", "RuntimeError: received 0 items of ancdata", std("multiprocessing/reduction.py:x")),
    data("trials/cls pin memory", "RuntimeError: Pin memory thread exited unexpectedly", *LOADER[1:]),
    data("trials/cls loader timeout", "RuntimeError: DataLoader timed out after 60 seconds", *LOADER[1:]),
    data("made: a worker that crashed by itself", "RuntimeError: DataLoader worker (pid 77) is killed by signal: Segmentation fault. ", *LOADER[1:]),
    data("milesial/Pytorch-UNet#250", "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal " + "\n".join(tb("KeyError: 'label'", lib("torch/utils/data/_utils/worker.py:_worker_loop"), "data.py:__getitem__")), *LOADER[1:]),
    end("made: the hub may not be asked", chain(tb("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and outgoing traffic has been disabled. To enable hf.co look-ups and downloads online, set 'local_files_only' to False.", MAIN, lib("huggingface_hub/file_download.py:_raise_on_head_call_error")), tb("OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.", MAIN, lib("transformers/utils/hub.py:cached_files")), link=CAUSED), C.EXCEPTION, "code"),
    data("made: datasets may ask nobody", "ConnectionError: Couldn't reach 'org/set' on the Hub (OfflineModeIsEnabled)", lib("datasets/load.py:dataset_module_factory")),
    data("made: the hub says no", "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. Repository Not Found for url: https://hf/api/models/x", lib("huggingface_hub/utils/_http.py:hf_raise_for_status")),
    data("made: the hub's token has no rights", "huggingface_hub.errors.HfHubHTTPError: 403 Forbidden: None. Cannot access content at: https://hf/api/repos/create.", lib("huggingface_hub/utils/_http.py:hf_raise_for_status")),
    data("made: the hub's branch has moved", "huggingface_hub.errors.HfHubHTTPError: 412 Client Error: Precondition Failed for url: https://hf/api/models/x/commit/main", lib("huggingface_hub/utils/_http.py:hf_raise_for_status")),
    data("made: a certificate that nobody signed", "requests.exceptions.SSLError: HTTPSConnectionPool(host='t', port=443): Max retries exceeded with url: / (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in certificate chain (_ssl.c:1007)')))", lib("requests/adapters.py:send")),
    data("made: a proxy that lets nobody through", "requests.exceptions.ProxyError: HTTPSConnectionPool(host='t', port=443): Max retries exceeded with url: / (Caused by ProxyError('Unable to connect to proxy', OSError('Tunnel connection failed: 403 Forbidden')))", lib("requests/adapters.py:send")),
    data("made: no such database", 'psycopg2.OperationalError: connection to server at "db" (10.0.0.7), port 5432 failed: FATAL:  database "runs" does not exist', lib("psycopg2/__init__.py:connect")),
    data("made: no entry for this host", 'psycopg2.OperationalError: connection to server at "db" (10.0.0.7), port 5432 failed: FATAL:  no pg_hba.conf entry for host "10.0.0.3", user "x", database "runs", SSL encryption', lib("psycopg2/__init__.py:connect")),
    data("made: a wrong query", "elasticsearch.BadRequestError: BadRequestError(400, 'parsing_exception', 'unknown query')", lib("elasticsearch/_sync/client/__init__.py:perform_request")),
    data("made: not logged in", "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://hf/api/whoami", lib("requests/models.py:raise_for_status")),
    data("made: no key", "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])", lib("wandb/sdk/wandb_login.py:prompt")),
    data("made: no such bucket", "botocore.exceptions.ClientError: An error occurred (NoSuchBucket) when calling the PutObject operation: The specified bucket does not exist", lib("botocore/client.py:_make_api_call")),
    data("made: a table", 'psycopg2.errors.UndefinedTable: relation "runs" does not exist', lib("psycopg2/extras.py:execute")),
    data("made: a child's own error", "subprocess.CalledProcessError: Command 'prep.sh' returned non-zero exit status 2.", std("subprocess.py:run")),
    data("made: a chain of the program's own", "\n".join(["KeyError: 'a'", "", CAUSED, "", *tb("ValueError: bad config")])),
    data("made: a thread pool's task", "ValueError: bad shard", std("concurrent/futures/thread.py:run"), "data.py:read"),
)
# fmt: on

ENDS: Final = (
    *NOISE_ENDS,
    *SERVICE_ENDS,
    *STORAGE_ENDS,
    *MEMORY_ENDS,
    *PEER_ENDS,
    *DEVICE_ENDS,
    *KILL_ENDS,
    *CHILD_ENDS,
    *CODE_ENDS,
)
