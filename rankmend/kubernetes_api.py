"""Calls Kubernetes' API through the project's own Python client: each within a timeout.

A call is sent again only where the server has turned it away unread (429 with Retry-After), within the same timeout. What changes
something carries what is left of the timeout to the server, too, so that it has no effect long after it was forgotten.
"""

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rankmend.cut_paths import CLIENT_OPTIONS
from rankmend.errors import ConfigError, ManagerAwayError, ManagerDeniedError, ManagerError
from rankmend.printable import printable

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/strategic-merge-patch+json"  # lists of conditions by their type
APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
FIELD_MANAGER: Final = "rankmend"
_CHUNK_BYTES: Final = 1 << 16
_FAULT_CHARACTERS_MAX: Final = 500
_BUSY: Final = 429
_PAUSE_S_MIN: Final = 0.05  # before a call that was turned away is sent again
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_FILE: Final = _SERVICE_ACCOUNT / "token"
_TOKEN_CHARS_MAX: Final = 64 * 1024
_NAMED: Final = frozenset(
    {"tokenFile", "client-certificate", "client-key", "certificate-authority"}
)
_ACT_S_MIN: Final = 1.0  # a call that changes something is not begun with less
_MARGIN_S: Final = 1.0  # between its end and that of the lease


class KubernetesError(ManagerError):
    """The API refused a call; the text names the call and the answer."""


class KubernetesAwayError(KubernetesError, ManagerAwayError):
    """The API gave no answer: whether the call took effect is unknown until it answers again."""


class KubernetesLoginError(KubernetesAwayError):
    """The API does not know who we are: our token or certificate has expired, or it can't check that now. It says nothing of what was asked."""


class KubernetesDeniedError(KubernetesError, ManagerDeniedError):
    """The API does not let us: a rule of RBAC is missing."""


class KubernetesUnknownError(KubernetesError):
    """There is no such object."""


class KubernetesConflictError(KubernetesError):
    """The object has changed since it was read."""


class KubernetesOwnerError(KubernetesError):
    """Somebody else has set the field to another value."""


class KubernetesBudgetError(KubernetesError):
    """A PodDisruptionBudget forbids the eviction now."""


class KubernetesApi:
    """For one thread."""

    def __init__(
        self,
        api: Any,
        timeout_s: float,
        field_manager: str = FIELD_MANAGER,
        renewed: Callable[[], Any] = lambda: None,
    ) -> None:
        """``api``: a `kubernetes.client.ApiClient` that retries nothing. ``renewed`` returns another one once what it was made of has changed."""
        self._api = api
        self._renewed = renewed
        self._field_manager = field_manager
        self.timeout_s = timeout_s
        self.left_s: Callable[[], float] = lambda: math.inf
        """Until when this process may change anything, in seconds from now: what does ends a second before."""

    def call(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: object = None,
        *,
        sends: str = JSON,
    ) -> dict[str, Any]:
        """Return the answer, or raise KubernetesError."""
        what = f"{method} {path}"
        self._api = self._renewed() or self._api
        until_s = time.monotonic()
        until_s += self.timeout_s if method == "GET" else self._act_timeout_s(what)
        while True:
            answer, data = self._send(method, path, query, body, sends, until_s)
            if len(data) > ANSWER_BYTES_MAX:
                raise KubernetesError(
                    _fault_text(what, f"an answer of over {ANSWER_BYTES_MAX} bytes is too long")
                )
            reported = _decode(data)
            if 200 <= answer.status < 300:
                if reported is None:
                    raise KubernetesError(_fault_text(what, "the answer is not a JSON object"))
                return reported
            error = _error(what, answer.status, reported or {})
            pause_s = _pause_s(answer, error)
            if pause_s is None or time.monotonic() + pause_s >= until_s:
                raise error
            time.sleep(pause_s)

    def _send(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: object,
        sends: str,
        until_s: float,
    ) -> tuple[Any, bytes]:
        """Return the answer and its body, or raise KubernetesAwayError."""
        import urllib3  # noqa: PLC0415
        from kubernetes.client.exceptions import (  # noqa: PLC0415
            ApiException,
            OpenApiException,
        )

        what = f"{method} {path}"
        left_s = max(until_s - time.monotonic(), 0.001)
        requested = list(query)
        if method != "GET":
            requested += [("fieldManager", self._field_manager), ("timeout", f"{left_s:.3f}s")]
        heads = {"Accept": JSON, "Content-Type": sends}
        try:
            words = self._api.param_serialize(
                method,
                path,
                query_params=requested,
                header_params=heads,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = self._api.call_api(*words, _request_timeout=left_s)
            data = _read(answer.response, until_s)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KubernetesAwayError(_fault_text(what, f"no answer: {error}")) from error
        except (ApiException, OpenApiException) as error:
            raise KubernetesAwayError(_fault_text(what, str(error))) from error
        if data is None:
            raise KubernetesAwayError(_fault_text(what, f"no whole answer in {self.timeout_s:g} s"))
        return answer, data

    def _act_timeout_s(self, what: str) -> float:
        left_s = self.left_s()
        if left_s - _MARGIN_S < _ACT_S_MIN:
            raise KubernetesAwayError(
                _fault_text(
                    what, f"not sent: the lease under which we act has only {left_s:.1f} s left"
                )
            )
        return min(self.timeout_s, left_s - _MARGIN_S)


def _read(response: Any, until_s: float) -> bytes | None:
    """Return the body, a little more than what is allowed of one that is too long, or None where time is up."""
    parts, size = [], 0
    while size <= ANSWER_BYTES_MAX:
        if time.monotonic() > until_s:
            response.close()
            return None
        part = response.read(_CHUNK_BYTES)
        if not part:
            break
        parts.append(part)
        size += len(part)
    response.release_conn()
    return b"".join(parts)


def _decode(data: bytes) -> dict[str, Any] | None:
    try:
        reported = json.loads(data)
    except ValueError:
        return None
    return reported if isinstance(reported, dict) else None


def _error(what: str, code: int, reported: dict[str, Any]) -> KubernetesError:
    text = _fault_text(
        what, f"{code}: {reported.get('message') or reported.get('reason') or 'no reason given'}"
    )
    if code == 401:
        return KubernetesLoginError(text)
    if code == 403:
        return KubernetesDeniedError(text)
    if code == 404:
        return KubernetesUnknownError(text)
    reasons = {item.get("reason") for item in (reported.get("details") or {}).get("causes") or ()}
    if code == 409:
        is_owned = "FieldManagerConflict" in reasons
        return KubernetesOwnerError(text) if is_owned else KubernetesConflictError(text)
    if code == _BUSY:
        return (
            KubernetesBudgetError(text)
            if "DisruptionBudget" in reasons
            else KubernetesAwayError(text)
        )
    return KubernetesAwayError(text) if code in (502, 503, 504) else KubernetesError(text)


def _pause_s(answer: Any, error: KubernetesError) -> float | None:
    """Return how long to wait before the call is sent again; None: it is not."""
    if answer.status != _BUSY or isinstance(error, KubernetesBudgetError):
        return None
    text = answer.response.headers.get("Retry-After", "")
    if not (text.isascii() and text.isdigit()):
        return None
    return max(_PAUSE_S_MIN, float(text[:6]))


def _fault_text(what: str, text: str) -> str:
    return printable(f"{what}: {text}"[:_FAULT_CHARACTERS_MAX])


def connect(
    kubeconfig: str | None,
    context: str | None,
    timeout_s: float,
    field_manager: str = FIELD_MANAGER,
) -> KubernetesApi:
    """Return the API of a kubeconfig file, or of the cluster in whose pod we run. Raises ConfigError."""
    if kubeconfig is not None:
        file = _Kubeconfig(Path(kubeconfig), context)
        return KubernetesApi(file.load(), timeout_s, field_manager, file.renewed)
    from kubernetes import client, config  # noqa: PLC0415

    settings = _settings()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException as error:
        where = "this pod's service account (set kubernetes.kubeconfig elsewhere)"
        raise ConfigError(f"cannot reach Kubernetes by {where}: {error}") from error
    settings.refresh_api_key_hook = _read_token
    return KubernetesApi(client.ApiClient(settings), timeout_s, field_manager)


def _settings() -> Any:
    from kubernetes import client  # noqa: PLC0415

    settings = client.Configuration()
    settings.retries = False
    settings.socket_options = list(CLIENT_OPTIONS)  # one client lives as long as the process
    return settings


class _Kubeconfig:
    """A kubeconfig file, read anew once it has changed, or a file that it names: certificates and tokens are renewed there.

    A connection that is open would go on with the old certificate until it ends.
    """

    def __init__(self, path: Path, context: str | None) -> None:
        self._path = path
        self._context = context
        self._files: tuple[Path, ...] = (path,)
        self._read: object = None  # what the files were when they were read

    def load(self) -> Any:
        """Return a client by what the files have now, or raise ConfigError."""
        import yaml  # noqa: PLC0415
        from kubernetes import client, config  # noqa: PLC0415

        if not self._path.is_file():
            raise ConfigError(f"kubernetes.kubeconfig: no file {self._path}")
        settings = _settings()
        try:
            with self._path.open(encoding="utf-8") as file:
                named = _named_files(yaml.safe_load(file))
            files = (self._path, *(self._path.parent / item for item in named))
            read = _state_of(files)
            config.load_kube_config(
                config_file=str(self._path),
                context=self._context,
                client_configuration=settings,
                persist_config=False,
            )
        except (config.ConfigException, yaml.YAMLError, OSError, ValueError) as error:
            raise ConfigError(f"cannot reach Kubernetes by {self._path}: {error}") from error
        self._files, self._read = files, read
        return client.ApiClient(settings)

    def renewed(self) -> Any:
        """Return another client if the files have changed; what can't be read for a moment leaves the one that was made before."""
        if _state_of(self._files) == self._read:
            return None
        with contextlib.suppress(ConfigError):
            return self.load()
        return None


def _named_files(reported: object) -> list[str]:
    """Return the files that a kubeconfig names, wherever it does."""
    if isinstance(reported, dict):
        here = [
            value for key, value in reported.items() if key in _NAMED and isinstance(value, str)
        ]
        return here + [file for value in reported.values() for file in _named_files(value)]
    return (
        [file for value in reported for file in _named_files(value)]
        if isinstance(reported, list)
        else []
    )


def _state_of(files: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    found: list[tuple[int, int, int] | None] = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def _read_token(settings: Any) -> None:
    """Take the token as the kubelet has renewed it: at each call, since the client's own reading waits for the wall clock.

    A file that is away or empty for a moment leaves the token that was read before.
    """
    with (
        contextlib.suppress(OSError, UnicodeDecodeError),
        TOKEN_FILE.open(encoding="ascii") as file,
    ):
        if token := file.read(_TOKEN_CHARS_MAX).strip():
            settings.api_key["BearerToken"] = f"Bearer {token}"
