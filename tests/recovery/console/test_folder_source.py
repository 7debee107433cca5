"""What the console of a state folder says of what is not there."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.console.source import JobRecords, PageError, Viewer
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.limits import Policy
from recovery.journal.records import Entry
from recovery.local.console.folder_source import FolderSource, read_tails
from tests.support.goodput_jobs import FAILURE

pytestmark = pytest.mark.process

VIEWER = Viewer("ann", "127.0.0.1", ())


def test_an_incident_or_a_job_that_is_not_in_the_folder_is_not_found(tmp_path: Path) -> None:
    source = FolderSource(tmp_path)

    for ask in (source.records, source.job):
        with pytest.raises(PageError, match="none-1") as caught:
            asyncio.run(ask(VIEWER, "none-1"))
        assert caught.value.status == 404


def test_the_tail_of_a_failed_ranks_output_is_read_bounded_and_follows_no_link(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "incidents" / "inc-1" / "attempt-1"
    saved.mkdir(parents=True)
    (saved / "stderr-rank-1.txt").write_text("".join(f"line {n}\n" for n in range(100)))
    (tmp_path / "secret").write_text("nobody's business")
    (saved / "stdout-rank-1.txt").symlink_to(tmp_path / "secret")
    finding = replace(FAILURE.finding, ranks=(1,))
    opened = IncidentOpened("inc-1", replace(FAILURE, finding=finding), 0.5, 120, Policy())
    records = JobRecords("job-1", "train", (Entry(1, 5000.0, 1.0, "boot-1", opened),))

    (tail,) = read_tails(tmp_path, records, "inc-1")

    assert (tail.rank, tail.stream, len(tail.lines)) == (1, "stderr", 40)
    assert tail.lines[-1] == "line 99"
    assert read_tails(tmp_path, records, "inc-2") == ()
