"""Calls Kubernetes' API through the project's own Python client: each within a time-out.

A call is sent again only where the server has turned it away unread (429 with Retry-After), within the same time-out. What changes
something carries what is left of the time-out to the server, too, so that it has no effect long after it was forgotten.
"""

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rankmend.errors import ConfigError, ManagerAwayError, ManagerDeniedError, ManagerError
from rankmend.printable import printable

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/strategic-merge-patch+json"  # lists of conditions by their type
APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
FIELD_MANAGER: Final = "rankmend"
_CHUNK_BYTES: Final = 1 << 16
_TOLD_MAX: Final = 500
_BUSY: Final = 429
_PAUSE_S_MIN: Final = 0.05  # before a call that was turned away is sent again
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_FILE: Final = _SERVICE_ACCOUNT / "token"
_TOKEN_CHARS_MAX: Final = 64 * 1024
_ACT_S_MIN: Final = 1.0  # a call that changes something is not begun with less
_MARGIN_S: Final = 1.0  # between its end and that of the lease


class KubernetesError(ManagerError):
    """The API refused a call; the text names the call and the answer."""


class KubernetesAwayError(KubernetesError, ManagerAwayError):
    """The API gave no answer: whether the call took effect is unknown until it answers again."""


class KubernetesDeniedError(KubernetesError, ManagerDeniedError):
    """The API does not let us: a rule of RBAC is missing, or our token is not valid."""


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

    def __init__(self, api: Any, timeout_s: float, field_manager: str = FIELD_MANAGER) -> None:
        """``api``: a `kubernetes.client.ApiClient` that retries nothing."""
        self._api = api
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
        until_s = time.monotonic()
        until_s += self.timeout_s if method == "GET" else self._act_timeout_s(what)
        while True:
            answer, data = self._send(method, path, query, body, sends, until_s)
            if len(data) > ANSWER_BYTES_MAX:
                raise KubernetesError(
                    _say(what, f"an answer of over {ANSWER_BYTES_MAX} bytes is too long")
                )
            told = _decode(data)
            if 200 <= answer.status < 300:
                if told is None:
                    raise KubernetesError(_say(what, "the answer is no JSON object"))
                return told
            error = _error(what, answer.status, told or {})
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
        asked = list(query)
        if method != "GET":
            asked += [("fieldManager", self._field_manager), ("timeout", f"{left_s:.3f}s")]
        heads = {"Accept": JSON, "Content-Type": sends}
        try:
            words = self._api.param_serialize(
                method,
                path,
                query_params=asked,
                header_params=heads,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = self._api.call_api(*words, _request_timeout=left_s)
            data = _read(answer.response, until_s)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KubernetesAwayError(_say(what, f"no answer: {error}")) from error
        except (ApiException, OpenApiException) as error:
            raise KubernetesAwayError(_say(what, str(error))) from error
        if data is None:
            raise KubernetesAwayError(_say(what, f"no whole answer in {self.timeout_s:g} s"))
        return answer, data

    def _act_timeout_s(self, what: str) -> float:
        left_s = self.left_s()
        if left_s - _MARGIN_S < _ACT_S_MIN:
            raise KubernetesAwayError(
                _say(what, f"not sent: the lease under which we act has only {left_s:.1f} s left")
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
        told = json.loads(data)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _error(what: str, code: int, told: dict[str, Any]) -> KubernetesError:
    text = _say(what, f"{code}: {told.get('message') or told.get('reason') or 'no reason given'}")
    if code in (401, 403):
        return KubernetesDeniedError(text)
    if code == 404:
        return KubernetesUnknownError(text)
    reasons = {one.get("reason") for one in (told.get("details") or {}).get("causes") or ()}
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


def _say(what: str, text: str) -> str:
    return printable(f"{what}: {text}"[:_TOLD_MAX])


def connect(
    kubeconfig: str | None,
    context: str | None,
    timeout_s: float,
    field_manager: str = FIELD_MANAGER,
) -> KubernetesApi:
    """Return the API of a kubeconfig file, or of the cluster in whose pod we run. Raises ConfigError."""
    from kubernetes import client, config  # noqa: PLC0415

    settings: Any = client.Configuration()
    settings.retries = False
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)
            settings.refresh_api_key_hook = _read_token
        else:
            path = Path(kubeconfig)
            if not path.is_file():
                raise ConfigError(f"kubernetes.kubeconfig: no file {kubeconfig}")
            config.load_kube_config(
                config_file=str(path),
                context=context,
                client_configuration=settings,
                persist_config=False,
            )
    except config.ConfigException as error:
        where = kubeconfig or "this pod's service account (set kubernetes.kubeconfig elsewhere)"
        raise ConfigError(f"cannot reach Kubernetes by {where}: {error}") from error
    return KubernetesApi(client.ApiClient(settings), timeout_s, field_manager)


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
