"""How much of the ranks' output is read at an incident: it is judged beside the launcher's loop."""

from pathlib import Path

from recovery.launcher.evidence.output_verdict import OUTPUT_BYTES_MAX, judge_output
from recovery.launcher.ranks.rank_logs import read_tail

ERROR = "[rank{rank}]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def test_the_output_of_many_ranks_is_read_up_to_one_bound(tmp_path: Path) -> None:
    state = tmp_path / "job"
    state.mkdir()
    (state / "run.json").write_text(f'{{"logs": "{tmp_path}/logs"}}')
    for rank in range(200):
        folder = tmp_path / "logs" / "attempt_1" / str(rank)
        folder.mkdir(parents=True)
        for stream in ("stdout", "stderr"):
            (folder / f"{stream}.log").write_text(ERROR.format(rank=rank) * 400)
    sizes_bytes: list[int] = []

    def read(path: Path, size_bytes_max: int) -> bytes:
        tail = read_tail(path, size_bytes_max)
        sizes_bytes.append(len(tail))
        return tail

    verdict = judge_output({}, state, 1, read)

    assert 0 < sum(sizes_bytes) <= OUTPUT_BYTES_MAX
    assert verdict is not None
    assert verdict.kind.value == "gpu_hardware"


def test_lines_that_launchers_remember_count_within_the_bound(tmp_path: Path) -> None:
    line = "step 1 loss 2.1 " + "x" * 4_000
    out = tuple(line for _line in range(20))
    error = ("RuntimeError: CUDA error: uncorrectable ECC error encountered",)

    verdict = judge_output(dict.fromkeys(range(128), (out, error)), tmp_path, 1)

    assert verdict is not None
    assert verdict.kind.value == "gpu_hardware"
