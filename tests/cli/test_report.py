"""`rankmend report` on a state folder, with names that somebody chose to do harm."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import cast

import msgspec
import pytest
from click.testing import CliRunner, Result

from detectors.finding import Finding
from rankmend.cli import cli
from rankmend.cli.sources.controller_options import Access
from rankmend.cli.sources.controller_reader import ControllerReader, entry_of
from recovery.api import wire
from recovery.api.controller_errors import BusyError
from recovery.api.operator_client import OperatorClient
from recovery.console.views.incident_view import view_story
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.job_records import JobOpened
from recovery.journal.records import Record
from recovery.journal.store import Journal
from tests.support.goodput_jobs import BEGIN, END, FAILED, Timed, entries_of

pytestmark = pytest.mark.process

HOSTILE = "=x<script>alert(1)</script>\"'>{{ 7*7 }}\x1b[2J\u202e"
NODE = '<img src=x onerror="alert(2)">'
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "section", "svg", "rect", "text", "span"),
    *("h1", "h2", "h3", "p", "b", "br", "dl", "dt", "dd", "div"),
    *("table", "thead", "tbody", "tr", "th", "td", "nav", "a"),
}


@dataclass
class HeldClock:
    at_s: float = 0.0

    def now_s(self) -> float:
        return self.at_s

    def unix_s(self) -> float:
        return 5000.0 + self.at_s


def write_job(state: Path, number: int, name: str, records: tuple[Timed, ...]) -> None:
    folder = state / "jobs" / f"job-{number}"
    folder.mkdir(parents=True)
    job_id = f"0000000{number}-0000-4000-8000-000000000000"
    (folder / "job.json").write_text(json.dumps({"job_id": job_id, "name": name}))
    clock = HeldClock()
    journal = Journal(folder / "journal.db", clock, "boot-1")
    for at_s, record in records:
        clock.at_s = at_s
        journal.append(named(record, job_id, name))
    journal.close()


def named(record: Record, job_id: str, name: str) -> Record:
    if isinstance(record, JobOpened):
        return JobOpened(job_id, name)
    if isinstance(record, IncidentOpened):
        finding: Finding = replace(record.failure.finding, node=NODE, summary=f"{name} failed")
        return replace(record, failure=replace(record.failure, finding=finding))
    return record


@pytest.fixture
def state(tmp_path: Path) -> Path:
    write_job(tmp_path, 1, HOSTILE, (*BEGIN, *FAILED, *END))
    write_job(tmp_path, 2, "calm", BEGIN)
    return tmp_path


def report(state: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["report", "--state-dir", str(state), *options])


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _value in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_json_divides_the_wall_time_of_each_job_into_parts(state: Path) -> None:
    result = report(state, "--json")

    assert result.exit_code == 0
    found = {job["job"]: job for job in json.loads(result.stdout)["jobs"]}
    job = found[HOSTILE]
    assert job["wall_s"] == 2010.0
    assert sum(part["seconds"] for part in job["parts"].values()) == pytest.approx(2010.0)
    assert sum(span["seconds"] for span in job["spans"]) == pytest.approx(2010.0)
    assert job["goodput_ratio"] == pytest.approx(1971 / 2010)
    assert job["incidents"][0]["mttr_s"] == 7.5
    assert found["calm"]["failures"] == 0


def test_terminal_gets_tables_and_nothing_that_it_would_obey(state: Path) -> None:
    result = report(state, "--all")

    assert result.exit_code == 0
    assert "goodput 98.06 %" in result.stdout
    assert "recomputed" in result.stdout
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout


def test_csv_holds_no_formula(state: Path) -> None:
    rows = list(csv.DictReader(report(state, "--csv").stdout.splitlines()))

    mine = [row for row in rows if row["job"].startswith("'=x<script>")]
    assert sum(float(row["seconds"]) for row in mine) == pytest.approx(2010.0, abs=0.01)
    assert len(mine) > 10


def test_page_is_one_file_in_which_every_text_is_escaped(state: Path, tmp_path: Path) -> None:
    result = report(state, "--html", str(tmp_path / "report.html"))

    assert result.exit_code == 0, result.output
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.tags <= ALLOWED
    assert not {name for name in page.attributes if name.startswith("on")}
    assert not page.attributes & {"src", "xlink:href", "srcdoc"}
    assert all(link.startswith("#") for link in re.findall('href="([^"]*)"', text))
    assert "url(" not in text
    assert "<script>alert(1)</script>" in "".join(page.texts)  # as a text
    assert "{{ 7*7 }}" in "".join(page.texts)
    assert NODE in "".join(page.texts)


def test_page_of_what_would_have_been_done_has_where_the_time_went_too(
    state: Path, tmp_path: Path
) -> None:
    result = report(state, "--would-have", "--html", str(tmp_path / "report.html"))

    assert result.exit_code == 0, result.output
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.tags <= ALLOWED
    assert re.findall('href="([^"]*)"', text)[:2] == ["#would-have", "#time"]
    assert 'id="would-have"' in text
    assert 'id="time"' in text
    texts = "".join(page.texts)
    assert "decisions that were not taken" in texts
    assert "goodput" in texts
    assert "calm" in texts


def test_page_of_several_jobs_begins_with_contents_and_a_table_that_leads_to_each(
    state: Path, tmp_path: Path
) -> None:
    report(state, "--html", str(tmp_path / "report.html"))

    text = (tmp_path / "report.html").read_text()
    assert re.findall('href="([^"]*)"', text) == ["#total", "#jobs", "#job-1", "#job-2"]
    assert [text.count(f' id="{name}"') for name in ("total", "jobs", "job-1", "job-2")] == [1] * 4
    table = text[text.index('id="jobs"') : text.index('id="total"')]
    assert table.index("<th>lost in all</th>") < table.index("<th>MTTR</th>")
    assert "<td>39 s</td>" in table
    assert "98.06 %" in table


def test_hours_of_hosts_without_a_gpu_are_those_of_ranks(state: Path, tmp_path: Path) -> None:
    shown = report(state, "--all").stdout
    report(state, "--html", str(tmp_path / "report.html"))

    assert "rank-hours" in shown
    assert "GPU-hours" not in shown + (tmp_path / "report.html").read_text()


def test_job_is_found_by_the_beginning_of_its_name_or_uuid(state: Path) -> None:
    assert "calm" in report(state, "--job", "cal").stdout
    assert "calm" in report(state, "--job", "00000002").stdout

    result = report(state, "--job", "no such")

    assert result.exit_code == 1
    assert "no job 'no such'" in result.output


def test_time_before_since_is_left_out(state: Path) -> None:
    later = json.loads(report(state, "--since", "1970-01-01T02:00Z", "--json").stdout)
    recent = json.loads(report(state, "--since", "1970-01-01T01:48:20Z", "--json").stdout)

    assert (later["jobs"], later["total"]["wall_s"]) == ([], 0)
    assert [job["wall_s"] for job in recent["jobs"]] == [510.0]  # from 6,500 s since 1970


@pytest.mark.parametrize(
    "options", [("--job", "x", "--all"), ("--csv", "--json"), ("--since", "x")]
)
def test_options_that_make_no_sense_are_refused(state: Path, options: tuple[str, ...]) -> None:
    assert report(state, *options).exit_code == 2


def test_no_jobs_are_no_error(tmp_path: Path) -> None:
    assert report(tmp_path).stdout == "no jobs\n"
    assert json.loads(report(tmp_path, "--json").stdout)["total"]["goodput_ratio"] is None
    assert report(tmp_path, "--html", str(tmp_path / "r.html")).exit_code == 0


def test_page_that_cannot_be_written_leaves_the_old_one(state: Path) -> None:
    result = report(state, "--html", "/proc/report.html")

    assert result.exit_code == 1
    assert "/proc/report.html" in result.output


def test_without_jinja2_the_command_names_what_to_install(state: Path) -> None:
    program = (
        "import sys; sys.modules['jinja2'] = None; from rankmend.cli import main;"
        f"main(['report', '--state-dir', {str(state)!r}, '--html', 'r.html'])"
    )

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=state, check=False
    )

    assert result.returncode == 1
    assert "pip install jinja2" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_controllers_story_gives_back_the_entries_that_it_was_made_from() -> None:
    entries = entries_of(*BEGIN, *FAILED, *END)

    story = view_story(entries, "job-1", "llama", None)

    assert story is not None
    assert [entry_of(line) for line in story.lines] == entries


@pytest.mark.safety
@pytest.mark.parametrize("words", [["status"], ["incidents"], ["report", "--job"]])
def test_damaged_file_of_one_job_hides_neither_another_nor_its_own_journal(
    state: Path, words: list[str]
) -> None:
    (state / "jobs" / "job-1" / "job.json").write_text("{")

    calm, own = (
        CliRunner().invoke(cli, [*words, wanted, "--state-dir", str(state), "--json"])
        for wanted in ("calm", "job-1")
    )

    assert (calm.exit_code, own.exit_code) == (0, 0), calm.output + own.output
    assert "7*7" in own.stdout
    if words != ["incidents"]:  # it had none
        assert "calm" in calm.stdout


class OneDamaged:
    """A controller that can't read the journals of the jobs named ``damaged``."""

    def __init__(self, *damaged: str) -> None:
        self.damaged = damaged
        self.ended_s_ago: dict[str, float] = {}
        self.stories: list[tuple[str, float | None]] = []

    def jobs(self, *, with_ended: bool = False) -> list[wire.JobView]:
        del with_ended
        views = [
            wire.JobView(name, name, name, "done", 1, 2, 1, 0, 0, 7, 0, None, "ann")
            for name in ("job-1", "job-2")
        ]
        for view in views:
            if view.name in self.ended_s_ago:
                view.began_unix_s, view.lasted_s = 1e9, 1e9 - self.ended_s_ago[view.name]
        return views

    def story(self, wanted: str, since_unix_s: float | None = None) -> wire.Story:
        self.stories.append((wanted, since_unix_s))
        if wanted in self.damaged:
            raise BusyError(f"{wanted} is damaged", status=503, reason=wire.JOURNAL_UNREADABLE)
        story = view_story(entries_of(*BEGIN), wanted, wanted, None)
        assert story is not None
        return story


@pytest.mark.safety
def test_a_damaged_journal_of_one_job_at_a_controller_hides_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = cast("OperatorClient", OneDamaged("job-1"))
    journals = list(ControllerReader(client, Access((), None, None)).journals())

    assert journals == [entries_of(*BEGIN)]
    assert "left out: job-1 is damaged" in capsys.readouterr().err


class Waiting(OneDamaged):
    """A controller with one job, which has written nothing for 990 s."""

    def jobs(self, *, with_ended: bool = False) -> list[wire.JobView]:
        (job, _other) = super().jobs(with_ended=with_ended)
        return [msgspec.structs.replace(job, state="waiting", began_unix_s=5000.0, lasted_s=1000.0)]


def test_a_report_of_a_controller_counts_the_wait_of_a_job_that_writes_nothing() -> None:
    """By the controller's clock: `Waiting` lasts 1000 s by it, and its newest record came at 10 s."""
    client = cast("OperatorClient", Waiting())

    (spent,) = ControllerReader(client, Access((), None, None)).times(None, None)

    assert spent is not None
    assert spent.time.length_s == 1000.0


@pytest.mark.safety
def test_a_controller_that_reads_no_journal_at_all_is_an_error() -> None:
    client = cast("OperatorClient", OneDamaged("job-1", "job-2"))

    with pytest.raises(BusyError, match="job-2 is damaged"):
        list(ControllerReader(client, Access((), None, None)).journals())


def test_a_report_since_a_moment_requests_no_story_of_a_job_that_had_ended() -> None:
    client = OneDamaged()
    client.ended_s_ago = {"job-1": 30 * 86_400.0, "job-2": 0.0}
    reader = ControllerReader(cast("OperatorClient", client), Access((), None, None))

    times = list(reader.times(None, 2e9 - 7 * 86_400.0))

    assert len(times) == 1
    assert client.stories == [("job-2", 2e9 - 7 * 86_400.0)]
