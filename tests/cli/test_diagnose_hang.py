"""`rankmend diagnose hang`: folders as they are found, the JSON contract, exit codes."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rankmend.cli import cli
from rankmend.cli.diagnosis.diagnose_hang import rank_of_name, read_dumps

DATASETS = os.environ.get("RANKMEND_DATASETS")
KEYS = {"verdict", "culprits", "class", "reason", "onset", "confidence", "evidence"}
needs_datasets = pytest.mark.skipif(DATASETS is None, reason="RANKMEND_DATASETS is unset")


def diagnose(*args: object) -> Result:
    return CliRunner().invoke(cli, ["diagnose", "hang", *map(str, args)])


def dump(*sequences: int, done: int = 0, time_s: int = 1_700_000_000) -> bytes:
    """Return the dump of a rank of two with these collectives outstanding."""
    entries: list[dict[str, Any]] = [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": time_s * 10**9,
            "state": "scheduled",
            "retired": number <= done,
        }
        for number in (*range(1, done + 1), *sequences)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    value = {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": entries}
    return pickle.dumps(value, protocol=2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_dump_12", (12, "_dump_*")),
        ("nccl_trace_rank_3", (3, "nccl_trace_rank_*")),
        ("rank-3_attempt_2.pkl", (3, "rank-*_attempt_2")),
        ("job7.host1.17.json", (17, "job7.host1.*")),
        ("README.md", None),
    ],
)
def test_rank_of_a_file_name(name: str, expected: tuple[int, str] | None) -> None:
    assert rank_of_name(name) == expected


@needs_datasets
@pytest.mark.parametrize(
    ("case", "ranks"), [("gpu_error_1st", [12, 14]), ("lock_gil_2nd", [10, 15])]
)
def test_recorded_folder_as_it_stands_gives_the_object_that_scripts_read(
    case: str, ranks: list[int]
) -> None:
    assert DATASETS is not None

    result = diagnose(Path(DATASETS) / "nvrx-fr-dumps" / case, "--json")

    assert result.exit_code == 0, result.output
    page = json.loads(result.stdout)
    assert set(page) == KEYS
    assert page["verdict"] == "culprits"
    assert [culprit["rank"] for culprit in page["culprits"]] == ranks
    assert {"host", "device", "stage", "dp_rank", "worker"} <= set(page["culprits"][0])


@needs_datasets
def test_person_is_shown_the_rank_its_class_and_a_map() -> None:
    assert DATASETS is not None

    result = diagnose(Path(DATASETS) / "nvrx-fr-dumps" / "lock_gil_2nd")

    assert "rank 10: host-stuck, stage 2" in result.output
    assert "wwwwwwwwwwXwwwwX" in result.output


@needs_datasets
def test_truncated_and_hostile_dumps_lower_the_confidence_and_name_nobody_else(
    tmp_path: Path,
) -> None:
    assert DATASETS is not None
    folder = tmp_path / "dumps"
    shutil.copytree(Path(DATASETS) / "nvrx-fr-dumps" / "lock_gil_2nd", folder)
    for name in ("_dump_3", "_dump_8"):
        (folder / name).chmod(0o644)
    (folder / "_dump_3").write_bytes((folder / "_dump_3").read_bytes()[:500])
    (folder / "_dump_8").write_bytes(b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00idtR.")

    page = json.loads(diagnose(folder, "--json").stdout)

    assert [culprit["rank"] for culprit in page["culprits"]] == [10, 15]
    assert page["confidence"] < 0.9
    texts = " ".join(line["text"] for line in page["evidence"])
    assert "_dump_3" in texts
    assert "GLOBAL" in texts


def test_newest_of_several_attempts_is_taken_and_the_others_are_said(tmp_path: Path) -> None:
    for attempt, absent in ((1, 0), (2, 1)):
        for rank in (0, 1):
            done = dump(done=4, time_s=1_700_000_000 + attempt)
            waits = dump(5, done=4, time_s=1_700_000_000 + attempt)
            file = tmp_path / f"attempt{attempt}_rank{rank}"
            file.write_bytes(done if rank == absent else waits)

    page = json.loads(diagnose(tmp_path, "--json").stdout)

    assert [culprit["rank"] for culprit in page["culprits"]] == [1]
    assert "attempt1_rank" in " ".join(line["text"] for line in page["evidence"])


def test_other_files_and_pipes_beside_the_dumps_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(dump(5, done=4))
    (tmp_path / "dump_1").write_bytes(dump(done=4))
    (tmp_path / "rank_0.log").write_text("hello")
    os.mkfifo(tmp_path / "dump_2")

    assert set(read_dumps(tmp_path).dumps) == {0, 1}


@pytest.mark.parametrize("content", [None, b"", b"\x80\x02}q", b"{", b'{"version": "9"}'])
def test_folder_without_a_readable_dump_ends_with_2_and_a_reason(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "dump_0").write_bytes(content)

    result = diagnose(tmp_path, "--json")

    assert result.exit_code == 2
    assert str(tmp_path) in result.stderr


def test_folder_that_does_not_exist_ends_with_2() -> None:
    assert diagnose("/nonexistent-folder").exit_code == 2


def test_one_rank_is_a_verdict_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(dump(5, done=4))

    result = diagnose(tmp_path, "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["verdict"] == "unknown"


def test_picture_without_matplotlib_is_a_clear_error_and_with_it_a_file(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(dump(5, done=4))
    (tmp_path / "dump_1").write_bytes(dump(done=4))

    result = diagnose(tmp_path, "--plot", tmp_path / "hang.png")

    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert result.exit_code == 2
        assert "matplotlib" in result.stderr
    else:
        assert (tmp_path / "hang.png").read_bytes().startswith(b"\x89PNG")


def world_dump(
    rank: int, ranks: int, *, absent: int, groups: dict[str, list[int]] | None = None
) -> bytes:
    """Return the dump of a rank that waits in the world's collective 5, or has not launched it."""
    value = pickle.loads(dump(*(() if rank == absent else (5,)), done=4))
    for number, (name, members) in enumerate(({"0": [*range(ranks)]} | (groups or {})).items()):
        description = "default_pg" if number == 0 else "mesh_tp"
        value["pg_config"][name] = {"name": name, "desc": description, "ranks": str(members)}
    return pickle.dumps(value, protocol=2)


def culprits_of(result: Result) -> list[tuple[int, str | None]]:
    assert result.exit_code == 0, result.output
    return [(one["rank"], one["host"]) for one in json.loads(result.stdout)["culprits"]]


@pytest.mark.parametrize(
    "name",
    [
        "{host}/nccl_trace_rank_{rank}",
        "nccl_trace_{host}_rank_{rank}",
        "{host}/dump_{rank}.pkl",
        "{host}_nccl_rank{rank}_pid71.bin",
    ],
)
def test_dumps_of_several_hosts_are_one_job_and_name_the_host(tmp_path: Path, name: str) -> None:
    for rank in range(8):
        file = tmp_path / name.format(host=f"gpu{rank // 2}", rank=rank)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(world_dump(rank, 8, absent=5))

    result = diagnose(tmp_path, "--json")

    assert culprits_of(result) == [(5, "gpu2")]


def test_a_process_number_in_each_name_makes_no_attempts_of_the_ranks(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank_{rank}_pid{4000 + rank}").write_bytes(world_dump(rank, 4, absent=2))

    assert culprits_of(diagnose(tmp_path, "--json")) == [(2, None)]


def test_numbers_on_each_node_become_ranks_by_the_groups_of_the_dumps(tmp_path: Path) -> None:
    for rank in range(8):
        groups = {"1": [rank // 4 * 4 + i for i in range(4)], "2": [rank % 4, rank % 4 + 4]}
        folder = tmp_path / f"n{rank // 4}"
        folder.mkdir(exist_ok=True)
        data = world_dump(rank, 8, absent=6, groups=groups)
        (folder / f"rank_{rank % 4}").write_bytes(data)

    assert culprits_of(diagnose(tmp_path, "--json")) == [(6, "n1")]


def test_numbers_on_each_node_that_nothing_resolves_are_an_error_and_no_wrong_name(
    tmp_path: Path,
) -> None:
    for rank in range(8):
        folder = tmp_path / f"n{rank // 4}"
        folder.mkdir(exist_ok=True)
        (folder / f"rank_{rank % 4}").write_bytes(world_dump(rank, 8, absent=6))

    result = diagnose(tmp_path, "--json")

    assert result.exit_code == 2
    assert "name the files by global rank" in result.stderr


def test_options_tell_host_device_stage_and_replica(tmp_path: Path) -> None:
    for rank in range(8):
        (tmp_path / f"rank_{rank}").write_bytes(world_dump(rank, 8, absent=5))
    numbered, slots = tmp_path / "numbered.hosts", tmp_path / "slots.hosts"
    numbered.write_text("\n".join(f"{rank} h{rank // 4} GPU-{rank}" for rank in range(8)))
    slots.write_text("# a hostfile\ngpu[01-02] slots=4\n")

    first = diagnose(tmp_path, "--hosts", numbered, "--tp", 2, "--pp", 2, "--json")
    second = diagnose(tmp_path, "--hosts", slots)

    (culprit,) = json.loads(first.stdout)["culprits"]
    assert (culprit["host"], culprit["device"]) == ("h1", "GPU-5")
    assert (culprit["stage"], culprit["dp_rank"]) == (1, 0)
    assert "rank 5: host-stuck, host gpu02" in second.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tp", "3"], "sizes tp 3"),
        (["--dp", "2"], "are 2 ranks, the job has 8"),
        (["--ep", "3"], "doesn't divide"),
        (["--hosts", "absent"], "cannot read absent"),
        (["--hosts", "bad.hosts"], "line 2"),
    ],
)
def test_options_that_contradict_the_dumps_end_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.hosts").write_text("0 n0\nn1 slots=4\n")
    for rank in range(8):
        (tmp_path / f"rank_{rank}").write_bytes(world_dump(rank, 8, absent=5))

    result = diagnose(tmp_path, *arguments)

    assert (result.exit_code, said in result.stderr) == (2, True), result.output


def test_answer_of_ncclras_is_further_evidence(tmp_path: Path) -> None:
    folder, ras = tmp_path / "dumps", tmp_path / "ras.txt"
    folder.mkdir()
    for rank, sequences in enumerate(((5,), (5, 6))):
        (folder / f"rank-{rank}.pkl").write_bytes(dump(*sequences, done=4))
    ras.write_text(
        "NCCL version 2.24.3 compiled with CUDA 12.6\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  3 ranks have launched up to operation 6\n"
        "  Rank 0 has launched up to operation 5 -- GPU 0 managed by process 7 on node 10.0.0.1\n"
    )

    shown = json.loads(diagnose(folder, "--json", "--ras", ras).stdout)
    ras.write_text("connection refused")
    refused = diagnose(folder, "--ras", ras)

    lines = [line["text"] for line in shown["evidence"] if line["source"] == "NCCL RAS"]
    assert lines == ["rank 0 (process 7 on 10.0.0.1): 5 AllReduce launched, others 6"]
    assert refused.exit_code == 2
    assert "not an answer of NCCL's RAS" in refused.stderr
