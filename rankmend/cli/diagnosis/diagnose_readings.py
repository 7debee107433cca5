"""Hardware readings for `rankmend diagnose`, from files or from Prometheus."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlencode, urlsplit

import click

from rankmend.errors import ConfigError, SourceError
from rankmend.files import read_capped

if TYPE_CHECKING:
    import urllib3

    from detectors.slow.hardware_reading import HardwareReading

FILE_BYTES_MAX: Final = 512_000_000
ANSWER_BYTES_MAX: Final = 256_000_000
TIMEOUT_S: Final = 60.0  # per query; Prometheus itself gives up after 2 min
# 16 nodes x 8 GPUs x 18 NVLinks x 120 samples are 276,000. More peers or samples make the median no
# better, and we query about 40 metrics.
NODES_MAX: Final = 16
SAMPLES_MAX: Final = 120
STEP_S_MIN: Final = 5.0  # the scrape interval of deploy/prometheus/rankmend.yml
_F = TypeVar("_F", bound=Callable[..., Any])


def parse_time(value: str) -> float:
    """Return unix seconds, parsed from a number or from a date and time (UTC if it has no zone)."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            stamp = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: neither unix seconds nor ISO 8601") from error
        if stamp.tzinfo is None:
            stamp = stamp.replace(tzinfo=timezone.utc)
        seconds = stamp.timestamp()
    if not isfinite(seconds):
        raise click.BadParameter(f"{value!r} is not a time")
    return seconds


def prometheus_options(command: _F) -> _F:
    """Add the options for the Prometheus to query and the window."""
    for option in (
        click.option(
            "--end",
            type=parse_time,
            metavar="TIME",
            help="End of the window: unix seconds or ISO 8601.",
        ),
        click.option("--start", type=parse_time, metavar="TIME", help="Start of the window."),
        click.option(
            "--job", "job_id", metavar="ID", help="Only the nodes of this job (its UUID)."
        ),
        click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            help="File with the bearer token for Prometheus.",
        ),
        click.option("--prometheus", "url", metavar="URL", help="Query this Prometheus."),
    ):
        command = option(command)
    return command


def read_files(named: Sequence[str], metrics: Collection[str]) -> "list[HardwareReading]":
    """Return the readings in files; each may be given as NODE=FILE.

    Without NODE= and without a label `node` or `instance`, the file's name up to its first dot is the
    node. A page without timestamps has the time of its file.
    """
    from detectors.formats.prometheus import is_answer, parse_answer, read_answer, read_page

    readings: list[HardwareReading] = []
    for text in named:
        node, _equals, name = text.partition("=")
        path = Path(name) if name and not Path(text).exists() else Path(text)
        node = node if path != Path(text) else path.name.partition(".")[0]
        data = read_capped(path, FILE_BYTES_MAX, SourceError)
        try:
            written_s = path.stat().st_mtime
            page = data.decode("utf-8")
            if page.lstrip().startswith(("{", "[")) and is_answer(document := parse_answer(page)):
                readings += read_answer(document, metrics, node)
            else:
                readings += read_page(page, metrics, node, written_s)
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"cannot read {path}: {error}") from error
        except SourceError as error:
            raise SourceError(f"{path}: {error}") from error
    return readings


class Prometheus:
    """Queries one Prometheus; every answer is bounded in time and size."""

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--prometheus {url}: not an http or https address")
        if parts.username or parts.password:
            raise ConfigError("--prometheus: no password in the address; use --token-file")
        self._base = url.rstrip("/")
        self._headers = {
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        if token_file is not None:
            try:
                token = token_file.read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"cannot read {token_file}: {error}") from error
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = _make_pool(url)

    def readings(
        self,
        selections: Mapping[str, tuple[str, frozenset[str]] | None],
        start_s: float,
        end_s: float,
        *,
        nodes: Collection[str] = (),
        job_id: str | None = None,
        nodes_max: int = NODES_MAX,
    ) -> "list[HardwareReading]":
        """Return the samples of these nodes in a window, and of as many others as allowed.

        ``selections``: metric -> the label and the values to select, None for all series.
        """
        from detectors.formats.prometheus import READINGS_MAX, read_answer

        if not start_s < end_s:
            raise ConfigError(f"the window ends ({end_s:.0f}) before it begins ({start_s:.0f})")
        step_s = max(STEP_S_MIN, (end_s - start_s) / SAMPLES_MAX)
        chosen = self._nodes(start_s, end_s, nodes, job_id)[:nodes_max]
        only = {"node": "|".join(re.escape(node) for node in chosen)} if chosen else {}
        found: list[HardwareReading] = []
        for metric, selection in sorted(selections.items()):
            wanted = {selection[0]: "|".join(sorted(selection[1]))} if selection else {}
            matchers = ", ".join(
                f"{key}=~{json.dumps(value)}" for key, value in (only | wanted).items()
            )
            answer = self._ask(f"{metric}{{{matchers}}}", start_s, end_s, step_s)
            found += read_answer(answer, {metric})
            if len(found) > READINGS_MAX:
                raise SourceError(f"more than {READINGS_MAX} samples in this window")
        return found

    def _nodes(
        self, start_s: float, end_s: float, nodes: Collection[str], job_id: str | None
    ) -> list[str]:
        """Return the nodes to query; empty if the series have no label `node`."""
        chosen = (
            f"rankmend_rank_info{{job_id={json.dumps(job_id)}}}"
            if job_id
            else "rankmend_agent_info"
        )
        step_s = max(STEP_S_MIN, (end_s - start_s) / 10)
        answer = self._ask(f"group by (node) ({chosen})", start_s, end_s, step_s)
        try:
            known = {str(item["metric"].get("node", "")) for item in answer["data"]["result"]} - {
                ""
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise SourceError(
                f"{self._base} did not answer as Prometheus does: {str(answer)[:200]}"
            ) from error
        if job_id and not known:
            raise SourceError(f"{self._base} has no rank of job {job_id} in this window")
        wanted = {name for node in nodes for name in (node, node.partition(".")[0])}
        first = sorted(known & wanted)
        return [*first, *sorted(known - wanted)]

    def _ask(self, query: str, start_s: float, end_s: float, step_s: float) -> Any:
        from urllib3.exceptions import HTTPError

        from detectors.formats.prometheus import parse_answer

        form = {
            "query": query,
            "start": f"{start_s:.3f}",
            "end": f"{end_s:.3f}",
            "step": f"{step_s:.3f}",
        }
        try:
            answer = self._pool.request(
                "POST",
                f"{self._base}/api/v1/query_range",
                body=urlencode(form),
                headers=self._headers,
                timeout=TIMEOUT_S,
                redirect=False,  # a redirect could carry the token elsewhere
                preload_content=False,
                decode_content=False,
            )
            with answer:
                data: bytes = answer.read(ANSWER_BYTES_MAX + 1)
        except (HTTPError, OSError, ValueError) as error:
            cause = error.__cause__  # the system's error; urllib3's own names its objects
            reason = cause if isinstance(cause, OSError) else error
            raise SourceError(f"cannot query {self._base}: {reason}") from error
        if answer.status != 200:
            reported = data[:2_000].decode("utf-8", "replace")
            raise SourceError(f"{self._base} answered {answer.status} to {query}: {reported[:300]}")
        if len(data) > ANSWER_BYTES_MAX:
            raise SourceError(
                f"{self._base} sent more than {ANSWER_BYTES_MAX} bytes in answer to {query}"
            )
        answer_page = parse_answer(data)
        if not isinstance(answer_page, dict) or answer_page.get("status") != "success":
            raise SourceError(f"{self._base} answered: {str(answer_page)[:300]}")
        return answer_page


def _make_pool(url: str) -> "urllib3.PoolManager":
    """Return a connection pool, through the environment's proxy for this address if there is one."""
    from ssl import create_default_context
    from urllib.request import getproxies, proxy_bypass

    import urllib3

    parts = urlsplit(url)
    proxy = None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
    context = create_default_context()
    if proxy is None:
        return urllib3.PoolManager(retries=False, ssl_context=context)
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    named = urlsplit(proxy)
    headers = None
    if named.username is not None:
        login = f"{unquote(named.username)}:{unquote(named.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=login)
    return urllib3.ProxyManager(proxy, retries=False, ssl_context=context, proxy_headers=headers)
