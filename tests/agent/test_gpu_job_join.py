"""The documented expressions that put the job on the series of a GPU, in a real Prometheus."""

import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from agent.assembly.families import FAMILIES
from tests.support.agent import ROOT
from tests.support.eventually import eventually
from tests.support.monitoring import fetch, running_prometheus

PAGE = ROOT / "docs" / "operate" / "agent.md"
SHARED, OWN, IDLE = "GPU-shared", "GPU-own", "GPU-idle"
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]


def documented(start: str) -> str:
    """Return the expression of the page that begins with a word."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(f"    {start} "))
    return " ".join(line.strip() for line in lines[first : first + 2])


def series(registry: CollectorRegistry, name: str, *rows: dict[str, str]) -> None:
    """Show one series of a family of the agent for each row; labels that it lacks are empty."""
    labels = FAMILIES[name].labels
    gauge = Gauge(name, "-", labels, registry=registry)
    for row in rows:
        gauge.labels(**{label: row.get(label, "") for label in labels}).set(1)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    registry = CollectorRegistry()
    gpus = [{"gpu": str(n), "uuid": uuid} for n, uuid in enumerate((OWN, SHARED, IDLE))]
    job = {"slurm_job": "42", "user": "anna", "job_name": "llama"}
    shared = [{**gpus[1], "slurm_job": number} for number in ("43", "44")]
    series(registry, "rankmend_gpu_power_watts", *gpus)
    series(registry, "rankmend_gpu_nvlink_up", {**gpus[0], "link": "0"}, {**gpus[0], "link": "1"})
    series(registry, "rankmend_gpu_job_info", {**gpus[0], **job}, *shared)
    dcgm = Gauge("DCGM_FI_DEV_POWER_USAGE", "-", ["UUID"], registry=registry)
    for gpu in gpus:
        dcgm.labels(gpu["uuid"]).set(1)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    folder = tmp_path_factory.mktemp("prometheus")
    target = f"127.0.0.1:{server.server_port}"
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 5s}\n"  # also how long a scrape may take: a failed one ends all series
        f"scrape_configs: [{{job_name: agent, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    try:
        with running_prometheus(folder) as address:
            eventually(lambda: has_scraped(address), "a scrape")
            yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(url: str, expression: str) -> list[dict[str, str]]:
    """Return the labels of each series that Prometheus answers."""
    query = urllib.parse.urlencode({"query": expression})
    told = fetch(url, f"/api/v1/query?{query}")
    assert told["status"] == "success", told
    return [one["metric"] for one in told["data"]["result"]]


def has_scraped(url: str) -> bool:
    try:
        return bool(ask(url, "rankmend_gpu_job_info"))
    except (OSError, ValueError):
        return False


@pytest.mark.parametrize(
    ("start", "label"), [("rankmend_gpu_power_watts", "uuid"), ("DCGM_FI_DEV_POWER_USAGE", "UUID")]
)
def test_expression_puts_the_job_on_a_series_of_a_gpu(url: str, start: str, label: str) -> None:
    found = ask(url, documented(start))

    told = [(one[label], one["slurm_job"], one["user"], one["job_name"]) for one in found]
    assert told == [(OWN, "42", "anna", "llama")]


def test_expression_fits_series_with_labels_of_their_own(url: str) -> None:
    start = "rankmend_gpu_power_watts"
    expression = documented(start).replace(start, "rankmend_gpu_nvlink_up", 1)

    found = ask(url, expression)

    assert sorted((one["link"], one["slurm_job"]) for one in found) == [("0", "42"), ("1", "42")]


def test_gpus_without_one_job_can_be_kept(url: str) -> None:
    start = "rankmend_gpu_power_watts"

    found = ask(url, f"{documented(start)} or on (instance, uuid) {start}")

    told = sorted((one["uuid"], one.get("slurm_job", "")) for one in found)
    assert told == [(IDLE, ""), (OWN, "42"), (SHARED, "")]
