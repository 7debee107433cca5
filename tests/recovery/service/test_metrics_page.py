"""The forms of the controller's metrics: text and OpenMetrics with one content, gzip on request, read by a real Prometheus."""

import gzip
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from recovery.service.http.call import Accepts
from recovery.service.http.handlers.health import metrics_page
from recovery.service.metrics.measures import Measures
from tests.support.bound_to_test import BOUND_TO_TEST
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port
from tests.support.goodput_jobs import BEGIN, FAILED
from tests.support.service import Running, make_folder, running, two_speakers
from tests.support.service_bench import Followed

pytestmark = pytest.mark.process

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def samples(families: Iterable[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the value of each series but those of when a counter began, which only one form has as samples."""
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
        if not one.name.endswith("_created")
    }


def test_both_forms_have_the_same_series_and_openmetrics_is_strictly_so() -> None:
    job = Followed()
    job.take(*BEGIN, *FAILED)
    measures = job.measures
    measures.budget.labels('a "job"\n\\').set(3)
    measures.phase_s.labels("detect").observe(2.0)

    text = metrics_page(measures, Accepts())
    page = metrics_page(measures, Accepts(OPENMETRICS))

    assert text.content_header == "text/plain; version=0.0.4; charset=utf-8"
    assert page.content_header.startswith("application/openmetrics-text; version=1.0.0;")
    assert page.body.endswith(b"# EOF\n")
    parse: Callable[[str], Iterable[Metric]] = openmetrics.text_string_to_metric_families
    read = samples(parse(page.body.decode()))
    assert read == samples(read_text(text.body.decode()))
    assert len(read) > 200


@pytest.mark.parametrize("accept", ["", "*/*", "application/openmetrics-text; version=new", "\xff"])
def test_whoever_asks_for_nothing_that_there_is_gets_text(accept: str) -> None:
    page = metrics_page(Measures(), Accepts(accept))

    assert page.content_header == "text/plain; version=0.0.4; charset=utf-8"
    assert not page.is_gzipped


@pytest.mark.parametrize("encodings", ["gzip", "deflate, GZIP;q=0.5"])
def test_a_page_is_compressed_for_whoever_takes_that(encodings: str) -> None:
    measures = Measures()

    page = metrics_page(measures, Accepts("", encodings))

    assert page.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(page.body) == metrics_page(measures, Accepts()).body
    assert len(page.body) * 5 < len(gzip.decompress(page.body))
    assert not metrics_page(measures, Accepts("", "deflate, br")).is_gzipped


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    make_folder(tmp_path / "files")
    with running(tmp_path / "files") as up:
        yield up


def test_the_service_answers_in_the_form_that_the_headers_ask_for(up: Running) -> None:
    token = (up.folder / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    asked = {**headers, "Accept": OPENMETRICS, "Accept-Encoding": "gzip"}
    with urllib3.PoolManager(ca_certs=str(up.ca)) as pool:
        plain = pool.request("GET", f"{up.url}/metrics", headers=headers)
        packed = pool.request("GET", f"{up.url}/metrics", headers=asked, decode_content=False)

    assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0;")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Vary"] == plain.headers["Vary"] == "Accept, Accept-Encoding"
    assert gzip.decompress(packed.data).endswith(b"# EOF\n")


def test_a_real_prometheus_takes_openmetrics_and_finds_a_jobs_series(
    up: Running, tmp_path: Path
) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    one, _two = two_speakers(up.client())
    one.obey()
    job_id, port = one.job_id, free_port()
    config = {
        "global": {"scrape_interval": "5s", "scrape_timeout": "5s"},
        "scrape_configs": [
            {
                "job_name": "controller",
                "scheme": "https",
                "tls_config": {"ca_file": str(up.ca)},
                "authorization": {"credentials_file": str(up.folder / "admin.token")},
                "static_configs": [{"targets": [f"127.0.0.1:{up.port}"]}],
            }
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *BOUND_TO_TEST,
                "prometheus",
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    ask = asker(f"http://127.0.0.1:{port}/api/v1/")
    try:
        name = f'rankmend_controller_restarts_left{{job_id="{job_id}"}}'
        eventually(lambda: bool(ask("query", query=name).get("result")), f"{name} is scraped")
        family = {"metric": "rankmend_controller_alerts"}
        eventually(lambda: bool(ask("targets/metadata", **family)), "its type is known")
        told = ask("targets/metadata", **family)
    finally:
        process.kill()
        process.wait(DEADLINE_S)

    # In text the family of a counter has the name of its series, with `_total`.
    assert [one["type"] for one in told] == ["counter"]


def asker(base: str) -> Callable[..., Any]:
    def ask(path: str, **query: str) -> Any:
        """Return the data of an answer; empty while there is none."""
        url = f"{base}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                return json.loads(answer.read())["data"]
        except OSError:
            return {}

    return ask
