"""What is kept of the ranks' output on this machine, and how it is read."""

import json
from pathlib import Path

from recovery.launcher.ranks.rank_logs import LogReader, RankLog, kept_by, last_words, select


def make_job(tmp_path: Path, **run: object) -> Path:
    folder = tmp_path / "state" / "jobs" / "train-1"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"name": "train", "job_id": "ab"}))
    (folder / "run.json").write_text(json.dumps({"node": "n1", **run}))
    return folder


def write(tmp_path: Path, attempt: int, local_rank: int, text: str, stream: str = "stdout") -> Path:
    path = tmp_path / "logs" / f"attempt_{attempt}" / str(local_rank) / f"{stream}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def lines_of(reader: LogReader) -> list[str]:
    found: list[str] = []
    while (lines := reader.read()) is not None:
        found += lines
    return found


def test_files_are_listed_by_attempt_and_by_the_rank_that_wrote_them(tmp_path: Path) -> None:
    write(tmp_path, 2, 0, "a")
    (write(tmp_path, 2, 1, "b").parent / "rank").write_text("9\n")
    write(tmp_path, 1, 0, "c", "stderr")
    write(tmp_path, 1, 0, "c")
    (tmp_path / "logs" / "attempt_2" / "filtered_stdout.log").write_text("x")
    kept = kept_by(make_job(tmp_path, logs=str(tmp_path / "logs")))

    logs = kept.files()

    assert [(log.attempt, log.rank, log.stream) for log in logs] == [
        (1, 0, "stdout"),
        (1, 0, "stderr"),
        (2, 0, "stdout"),
        (2, 9, "stdout"),
    ]
    assert [log.rank for log in select(logs, None, None)] == [0, 9], "the newest attempt"
    assert [log.stream for log in select(logs, 1, 0)] == ["stdout", "stderr"]
    assert select(logs, 1, 9) == []


def test_a_job_that_keeps_nothing_is_not_one_of_an_older_version(tmp_path: Path) -> None:
    nothing = kept_by(make_job(tmp_path / "a", logs=None))
    older = kept_by(make_job(tmp_path / "b"))

    assert (nothing.folder, nothing.is_older, nothing.files()) == (None, False, [])
    assert (older.folder, older.is_older) == (None, True)


def test_the_last_lines_of_the_newest_incident_are_found(tmp_path: Path) -> None:
    folder = make_job(tmp_path)
    attempt = folder / "incidents" / "ab-1" / "attempt-1"
    attempt.mkdir(parents=True)
    (attempt / "stderr-rank-0.txt").write_text("x")

    assert last_words(folder) == [attempt / "stderr-rank-0.txt"]
    assert last_words(tmp_path) == []


def test_whole_lines_are_read_and_the_rest_once_it_has_its_end(tmp_path: Path) -> None:
    path = write(tmp_path, 1, 0, "one\n10%\r50%\r90%\r\nthr")
    reader = LogReader(RankLog(path, 1, 0, "stdout"))

    assert lines_of(reader) == ["one", "90%"]
    with path.open("a") as file:
        file.write("ee\nfour")
    assert lines_of(reader) == ["three"]
    assert reader.read(is_last=True) == ["four"]
    assert reader.read(is_last=True) is None


def test_a_file_that_is_emptied_or_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = write(tmp_path, 1, 0, "one\ntwo\nhal")
    reader = LogReader(RankLog(path, 1, 0, "stdout"))
    assert lines_of(reader) == ["one", "two"]

    path.write_text("three\n")  # copytruncate
    emptied = lines_of(reader)
    path.rename(path.with_suffix(".log.1"))
    path.write_text("four\nand\na longer one\n")  # create
    replaced = lines_of(reader)

    assert (emptied, replaced) == (["three"], ["four", "and", "a longer one"])


def test_the_last_lines_are_counted_from_the_end(tmp_path: Path) -> None:
    ended = write(tmp_path, 1, 0, "".join(f"{number}\n" for number in range(100_000)))
    open_end = write(tmp_path, 1, 1, "a\nb\nc")

    assert lines_of(LogReader(RankLog(ended, 1, 0, "stdout"), 2)) == ["99998", "99999"]
    assert len(lines_of(LogReader(RankLog(ended, 1, 0, "stdout"), 90_000))) == 90_000
    assert lines_of(LogReader(RankLog(open_end, 1, 1, "stdout"), 2)) == ["b"]
    assert lines_of(LogReader(RankLog(open_end, 1, 1, "stdout"), 9)) == ["a", "b"]


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, 1, 0, "x\n")
    link = path.with_name("link")
    link.symlink_to(path)

    assert LogReader(RankLog(link, 1, 0, "stdout")).read() is None
