"""Whether an error says that something outside the job is away: a tracker, a hub, an object store, a database, DNS. Pure.

It is told by the object that failed: a client's name or frame, an address, a type that only clients have. Words such as
"connection refused" alone don't say by whom.
"""

import re
from collections.abc import Sequence
from typing import Final

from detectors.failed.error_text import ErrorFrame, ErrorPart

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
CLIENT_NAME: Final = re.compile(
    r"\b(?:requests|urllib3|httpx|httpcore|aiohttp|pycurl|botocore|boto3|google\.api_core|google\.auth|google\.cloud|azure\.core|huggingface_hub|wandb|mlflow|neptune"
    r"|comet_ml|clearml|redis|pymongo|elasticsearch|elastic_transport|psycopg2?|asyncpg|pymysql|MySQLdb|sqlalchemy|cassandra|grpc|kafka|pika|kazoo|kubernetes\.client|websockets?)"
    r"\.[\w.]+|HTTPS?ConnectionPool\(|HTTPS?Connection\(|\burlopen error\b|_InactiveRpcError|MlflowException|\bCommError\b|HfHubHTTPError|\bAioRpcError\b"
)
# An outage, whoever reports it.
OUTAGE: Final = re.compile(
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
SURE_OUTAGE: Final = re.compile(
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
SOCKET_ERROR: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:ConnectionError|Connection(?:Reset|Refused|Aborted)Error|BrokenPipeError|TimeoutError|timeout|OSError: \[Errno (?:101|104|110|111|112|113)\])(?!\w)"
)
# Names that clients give to their errors, whichever client it is.
_NETWORK_TYPE: Final = re.compile(
    r"(?m)^[\w.]{0,200}(?:Connect|Connection|Timeout|Unavailable|Disconnected|ServerError|NetworkError|RequestError|HTTPError|HttpError)\w{0,64}(?::|$)"
)
# A setting, such as HF_HUB_OFFLINE, and no outage. Sources: huggingface_hub/file_download.py, datasets/config.py.
_OFFLINE: Final = re.compile(
    r"outgoing traffic has been disabled|OfflineModeIsEnabled|(?i:offline mode is enabled)"
)
_MET_NETWORK: Final = re.compile(r"Max retries exceeded|\[Errno -?\d+\]|[Tt]imed out")


def is_offline(parts: Sequence[ErrorPart]) -> bool:
    """Return whether the program may ask nobody outside, and has asked nobody."""
    statements = [part.statement for part in parts]
    is_set = any(_OFFLINE.search(text) for text in statements)
    return is_set and not any(_MET_NETWORK.search(text) for text in statements)


def is_clients_own(statement: str, frames: Sequence[ErrorFrame]) -> bool:
    """Return whether an error with a type of data is a client's word that it had no answer: Transformers 4 and comet_ml raise a ValueError."""
    if "nternet connection is on" in statement:
        return True
    is_clients = bool(frames) and CLIENT.search(frames[0].path) is not None
    return is_clients and _NO_ANSWER.search(statement) is not None


def is_outage(statement: str, frames: Sequence[ErrorFrame]) -> bool:
    """Return whether something outside the job is away: told by the object that failed, not by words alone."""
    is_sure = SURE_OUTAGE.search(statement) is not None
    is_refused = _REFUSED_BY_SERVICE.search(statement) is not None and not is_sure
    if is_refused or _NEVER_REACHED.search(statement):
        return False
    if is_sure:
        return True
    has_address = _ADDRESS.search(statement) is not None
    if _NO_ANSWER.search(statement) and (has_address or _is_of_package(frames)):
        return True
    is_client = CLIENT_NAME.search(statement) or any(CLIENT.search(frame.path) for frame in frames)
    first = statement.partition("\n")[0]
    if is_client:
        patterns = (OUTAGE, _NETWORK_TYPE)
        is_told = any(pattern.search(statement) for pattern in patterns)
        return is_told or _PLAIN_OUTAGE.search(first) is not None
    if not _is_in_package(frames):
        return False
    is_network = _NETWORK_TYPE.search(first) is not None and OUTAGE.search(statement) is not None
    return is_network or SOCKET_ERROR.search(first) is not None


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
