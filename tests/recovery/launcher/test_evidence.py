"""The parts of evidence: its folder's bounds, the recorder's settings, and a collection's end."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.launcher.evidence import evidence_collector as bounds
from recovery.launcher.evidence.evidence_collector import (
    EvidenceCollector,
    EvidenceFolder,
    RankSource,
)
from recovery.launcher.evidence.rank_evidence import (
    RecorderFiles,
    ask_for_dump,
    recorder_environment,
    recorder_files,
)
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process


def test_what_the_user_has_set_of_the_recorder_stays() -> None:
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/tmp/mine_"}

    added = recorder_environment(own, Path("/run/a"))

    assert not {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"} & set(added)
    assert recorder_files({**own, **added}, 3, Path("/job")) == RecorderFiles(
        Path("/tmp/mine_3"), Path("/run/a/flight-pipe-3.pipe")
    )


def test_the_older_name_is_set_only_for_the_pytorch_that_knows_no_other() -> None:
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" not in recorder_environment({}, Path("/a"))
    assert recorder_environment({}, Path("/a"), is_old=True)["TORCH_NCCL_TRACE_BUFFER_SIZE"]


def test_a_pipe_that_nobody_reads_and_a_file_in_its_place_are_not_written_to(
    tmp_path: Path,
) -> None:
    files = RecorderFiles(tmp_path / "dump", tmp_path / "pipe")

    assert not ask_for_dump(files)
    os.mkfifo(files.pipe)
    assert not ask_for_dump(files)


def test_a_file_over_the_bound_is_left_out_with_a_note(tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path, "job-1", 1)
    folder.open()

    folder.write("large", b"x" * (bounds.FILE_BYTES_MAX + 1))
    folder.write("small", b"x")

    assert [path.name for path in folder.path.iterdir()] == ["small"]
    assert "large" in folder.notes[0]


def test_the_oldest_incidents_make_room_for_a_new_one(tmp_path: Path) -> None:
    for number in range(bounds.INCIDENTS_MAX + 5):
        old = tmp_path / f"job-{number}"
        old.mkdir()
        os.utime(old, (1000 + number, 1000 + number))

    EvidenceFolder(tmp_path, "job-new", 1).open()

    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == bounds.INCIDENTS_MAX
    assert {"job-new", f"job-{bounds.INCIDENTS_MAX + 4}"} <= left
    assert "job-0" not in left


@pytest.fixture
def stuck() -> threading.Event:
    return threading.Event()


def test_a_collection_that_is_stuck_is_left_behind_and_no_second_is_begun(
    tmp_path: Path, stuck: threading.Event
) -> None:
    def last_lines(_rank: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        stuck.wait(DEADLINE_S)
        return (), ()

    woken = threading.Event()
    clock = SystemClock()
    collector = EvidenceCollector(tmp_path, clock, last_lines)
    ranks = [RankSource(0, 0, None, None)]
    wake: Callable[[], None] = woken.set
    collector.start("job-1", 1, ranks, 5.0, wake)

    assert 0 < collector.wait_s(clock.now_s()) <= 5.0
    assert collector.wait_s(clock.now_s() + 5.0) == 0, "the launcher goes on"
    collector.start("job-2", 2, ranks, 5.0, wake)
    assert collector.take_report() is None

    stuck.set()
    assert woken.wait(DEADLINE_S)
    collector.close(DEADLINE_S)
    report = collector.take_report()
    assert report is not None
    assert report.incident_id == "job-1"


def test_an_incident_whose_name_is_a_path_is_refused(tmp_path: Path) -> None:
    collector = EvidenceCollector(tmp_path / "incidents", SystemClock(), lambda _rank: ((), ()))

    collector.start("../../escape", 1, [], 0.0, lambda: None)

    assert not (tmp_path / "escape").exists()
    assert collector.take_report() is None


FORTRAN = (
    "step 41 loss 2.1140",
    "terminate called after throwing an instance of 'std::runtime_error'",
    "  what():  CUDA error: uncorrectable ECC error encountered",
)


def _collect(tmp_path: Path, source: RankSource, err: tuple[str, ...]) -> str:
    state = tmp_path / "job"
    collector = EvidenceCollector(
        state / "incidents", SystemClock(), lambda _rank: (("step 40 loss 2.1",), err)
    )
    woken = threading.Event()
    collector.start("job-1", 1, [source], 0.0, woken.set)
    assert woken.wait(DEADLINE_S)
    collector.close(DEADLINE_S)
    report = collector.take_report()
    assert report is not None
    return report.output_says


def test_the_output_of_a_rank_without_an_error_of_its_own_says_what_happened(
    tmp_path: Path,
) -> None:
    said = _collect(tmp_path, RankSource(3, 0, None, None), FORTRAN)

    assert said.startswith("restart: rank 3: gpu hardware: ")
    assert "class device; blamed: rank" in said


def test_ranks_are_not_kept_alive_while_their_output_is_judged(tmp_path: Path) -> None:
    clock = SystemClock()
    collector = EvidenceCollector(
        tmp_path / "job" / "incidents", clock, lambda _rank: ((), FORTRAN)
    )
    waits_s: list[float] = []
    reports: list[bool] = []
    woken = threading.Event()

    def wake() -> None:
        waits_s.append(collector.wait_s(clock.now_s()))
        reports.append(collector.take_report() is not None)
        woken.set()

    collector.start("job-1", 1, [RankSource(3, 0, None, None)], DEADLINE_S, wake)
    assert woken.wait(DEADLINE_S)
    collector.close(DEADLINE_S)

    assert waits_s == [0.0, 0.0]
    assert reports == [False, True]


def test_the_output_is_not_judged_where_the_ranks_error_is_known(tmp_path: Path) -> None:
    assert _collect(tmp_path, RankSource(3, 0, None, None, has_error=True), FORTRAN) == ""


def test_output_that_shows_no_failure_says_nothing(tmp_path: Path) -> None:
    assert _collect(tmp_path, RankSource(3, 0, None, None), ("step 41 loss 2.1140",)) == ""


def test_the_end_of_a_launchers_log_file_is_read_beyond_the_last_lines(tmp_path: Path) -> None:
    state = tmp_path / "job"
    logs = tmp_path / "logs" / "attempt_1" / "3"
    logs.mkdir(parents=True)
    (logs / "stderr.log").write_text("\n".join([*FORTRAN, *["frame"] * 200, ""]))
    state.mkdir()
    (state / "run.json").write_text(f'{{"logs": "{tmp_path}/logs"}}')

    said = _collect(tmp_path, RankSource(3, 0, None, None), ("frame",) * 60)

    assert "uncorrectable ECC error" in said
