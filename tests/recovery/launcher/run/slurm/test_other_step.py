"""A note beside the checkpoints that launchers of another Slurm step have left, or still renew."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rankmend.errors import JobHeldError
from recovery.journal.folder.job_key import JobKey
from recovery.journal.limits import Policy
from recovery.launcher.run.host_guard import HostGuard
from recovery.launcher.run.meeting_site import HostFolder, HostNote, MeetingClient, Site
from recovery.launcher.run.options import Meeting, RunOptions

pytestmark = pytest.mark.safety


def note(beat: int, run: str) -> HostNote:
    return HostNote(
        key="job:x",
        node="a",
        url="https://a:1",
        secret="s",
        fingerprint="f",
        epoch=1,
        beat=beat,
        slurm_run=run,
    )


@pytest.fixture
def launcher(tmp_path: Path) -> Callable[[str], tuple[HostGuard, MeetingClient]]:
    """Return what makes a launcher of a step that is not its first node."""

    def make(run: str) -> tuple[HostGuard, MeetingClient]:
        site = Site(
            meeting=Meeting("127.0.0.1", 1, is_host=False),
            key=JobKey("job:x", "x", "--job"),
            folder=HostFolder(tmp_path),
            secret=None,
            name="b",
            address="127.0.0.1",
            state=tmp_path / "state",
            policy=Policy(),
            budgets=None,
        )
        client = MeetingClient(site)
        return HostGuard(site, client, RunOptions("train.py", slurm_run=run)), client

    return make


def test_note_of_its_own_step_is_followed(
    launcher: Callable[[str], tuple[HostGuard, MeetingClient]],
) -> None:
    guard, client = launcher("12:0:3")

    guard._follow(note(1, "12:0:3"))

    assert client.url == "https://a:1"


def test_note_that_the_last_start_of_the_job_left_is_waited_out(
    launcher: Callable[[str], tuple[HostGuard, MeetingClient]],
) -> None:
    guard, client = launcher("12:1:0")

    for beat in (1, 2, 2, 2, 2):  # the last one may come late
        guard._follow(note(beat, "12:0:0"))
    client.check()

    guard._follow(note(1, "12:1:0"))
    assert client.url == "https://a:1"


def test_step_whose_job_another_step_goes_on_with_gives_up(
    launcher: Callable[[str], tuple[HostGuard, MeetingClient]],
) -> None:
    guard, client = launcher("12:0:4")

    for beat in range(4):
        guard._follow(note(beat, "12:0:3"))

    with pytest.raises(JobHeldError, match="step 3 of Slurm job 12 runs this job already"):
        client.check()
