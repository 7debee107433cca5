"""Lines of a job's log: prefixes, names of files, forms, bounds."""

import json

import pytest

from detectors.job_log.lines import (
    FORM_LINES_MAX,
    LINE_BYTES_MAX,
    LogSource,
    SourceLines,
    read_sources,
)


def read(text: bytes, name: str = "job.log") -> SourceLines:
    (source,) = read_sources([LogSource(name, text.split(b"\n"))])
    return source


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        (b"[rank3]: ValueError: bad", 3, "ValueError: bad"),
        (b"[default7]:ValueError: bad", 7, "ValueError: bad"),
        (b"[default7]:[rank23]: ValueError: bad", 23, "ValueError: bad"),
        (b"[1,3]<stderr>:ValueError: bad", 3, "ValueError: bad"),
        (b"2024-05-01T10:00:00.123Z stderr F [rank5]: ValueError: bad", 5, "ValueError: bad"),
        (b"\x1b[31m[rank2]: ValueError: bad\x1b[0m", 2, "ValueError: bad"),
        (b"ValueError: bad", None, "ValueError: bad"),
    ],
)
def test_prefix_gives_the_rank_and_is_taken_away(line: bytes, rank: int | None, text: str) -> None:
    (kept,) = read(line).lines

    assert (kept.rank, kept.text) == (rank, text)


def test_a_line_of_the_journal_with_colours_is_an_array_of_bytes() -> None:
    coloured = list(b"\x1b[31m[rank2]: ValueError: bad\x1b[0m")
    lines = [{"MESSAGE": "start", "PRIORITY": "6"}, {"MESSAGE": coloured}]

    source = read("\n".join(map(json.dumps, lines)).encode())

    assert [(line.rank, line.text) for line in source.lines] == [(2, "ValueError: bad")]


def test_number_before_a_colon_is_a_rank_only_where_most_lines_have_one() -> None:
    labelled = read(b"0: start\n1: start\n1: ValueError: bad")
    plain = read(b"start\nloading\n17: ValueError: bad\nmore\nlines")

    assert [(line.rank, line.text) for line in labelled.lines] == [(1, "ValueError: bad")]
    assert [line.rank for line in plain.lines if "Error" in line.text] == [None]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("run_x/attempt_0/3/stderr.log", 3),
        ("logs/rank_12.log", 12),
        ("node4-rank7.txt.gz", 7),
        ("slurm-4711.out", None),
        ("train-2024-05-01.log", None),
    ],
)
def test_name_of_a_file_gives_the_rank_where_it_says_one(name: str, rank: int | None) -> None:
    (kept,) = read(b"ValueError: bad", name).lines

    assert kept.rank == rank


def test_lines_that_differ_in_numbers_only_are_not_kept_without_end() -> None:
    text = b"\n".join(b"Error: retry %d of shard %d" % (n, n) for n in range(30_000))

    kept = read(text).lines

    assert len(kept) < 5_000
    assert [line.number for line in kept[:FORM_LINES_MAX]] == [*range(1, FORM_LINES_MAX + 1)]
    assert kept[-1].number == 30_000


def test_line_without_an_end_is_cut() -> None:
    (kept,) = read(b"ValueError: " + b"x" * 3_000_000).lines

    assert len(kept.text) == LINE_BYTES_MAX


def test_progress_bar_that_overwrites_itself_leaves_its_last_part() -> None:
    (kept,) = read(b" 10%|#   | 1/9\r 20%|##  | 2/9\rKilled").lines

    assert kept.text == "Killed"


def test_utf_16_and_broken_utf_8_are_read() -> None:
    wide = read("ValueError: bad\n".encode("utf-16-le"))
    broken = read(b"ValueError: \xff\xfe bad")

    assert wide.lines[0].text == "ValueError: bad"
    assert broken.lines[0].text.startswith("ValueError: ")


@pytest.mark.parametrize(
    ("line", "is_step"),
    [
        (b" iteration       10/  500000 | lm loss: 1.1E+01 | grad norm: 3.1", True),
        (b"{'loss': 2.3, 'learning_rate': 5e-05, 'epoch': 0.1}", True),
        (b"Epoch 0:  6%|#  | 320/5001 [00:28<94:39, 1.37it/s, loss=2.6]", True),
        (b"Loading checkpoint shards:  57%|###  | 4/7 [00:40<00:29,  9.96s/it]", False),
        (b"  0%|          | 0/800 [00:22<?, ?it/s]", False),
        (b"using loss scale 1.0", False),
        (b"loss function: cross_entropy", False),
    ],
)
def test_training_step_is_known_by_its_loss_or_bar(line: bytes, is_step: bool) -> None:
    assert (read(line).first_progress is not None) is is_step


@pytest.mark.parametrize(
    "stamp", [b"2025-03-01T10:00:00.1Z stderr F ", b"2025-03-01T10:00:00.1Z ", b"10:00:00,123 "]
)
def test_stamp_before_a_line_leaves_the_lines_own_indent(stamp: bytes) -> None:
    lines = (
        b"Traceback (most recent call last):",
        b'  File "/w/a.py", line 3, in main',
        b"    go()",
    )

    kept = read(b"\n".join(stamp + line for line in lines)).lines

    assert [line.text for line in kept] == [line.decode() for line in lines]


def test_error_of_a_spawned_process_belongs_to_its_rank_up_to_an_empty_line() -> None:
    text = b"""-- Process 2 terminated with the following error:
Traceback (most recent call last):
  File "/w/a.py", line 3, in main
ValueError: bad

RuntimeError: of the parent"""

    assert [line.rank for line in read(text).lines] == [None, 2, 2, 2, None, None]


def test_text_in_a_collectors_json_is_read_by_its_lines_with_the_files_numbers() -> None:
    entries = [
        b'{"log": "iter 1: loss 2.8\\n", "stream": "stdout"}',
        b'{"log": "[rank3]: Traceback (most recent call last):\\n[rank3]:   File \\"a.py\\", line 1, in f\\n[rank3]: ValueError: bad\\n"}',
        b'{"log": "[rank1]: KeyError: 1\\n", "stream": "stderr"}',
    ]

    source = read(b"\n".join(entries))

    assert [(line.number, line.rank, line.text) for line in source.lines][-2:] == [
        (2, 3, "ValueError: bad"),
        (3, 1, "KeyError: 1"),
    ]
    assert (source.count, source.last_progress) == (3, 1)


def test_objects_without_a_text_and_broken_ones_are_read_as_they_are() -> None:
    texts = b'{"loss": 2.8, "step": 7}\n{"log": 7}\n{"log": "cut\n' + b"{" * 3_000

    source = read(texts + b"\nValueError: bad")

    assert [line.text for line in source.lines] == ["ValueError: bad"]


@pytest.mark.parametrize(
    ("names", "nodes"),
    [
        (("slurm-4711-n1.out", "slurm-4711-n2.out"), ["n1", "n2"]),
        (("logs/tcn12.err", "logs/tcn7.err"), ["tcn12", "tcn7"]),
        (("rack-a-b01.log", "rack-a-b02.log"), ["rack-a-b01", "rack-a-b02"]),
        (("attempt1.log", "attempt2.log"), [None, None]),
        (("a/out1.log", "a/out2.log"), [None, None]),
        (("n1.out", "n1.err"), [None, None]),
        (("n1.out", "m2.out"), [None, None]),
        (("n1.out",), [None]),
        (("x_n1.out", "y_n2.out"), [None, None]),
    ],
)
def test_files_that_differ_in_a_short_hosts_name_are_of_those_nodes(
    names: tuple[str, ...], nodes: list[str | None]
) -> None:
    sources = read_sources([LogSource(name, [b"ValueError: bad\n"]) for name in names])

    assert [source.lines[0].node for source in sources] == nodes
