"""The example jobs, run as a person would, with the variables of a launcher set by hand."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import forked_cli
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
DIGITS = EXAMPLES / "digits" / "train.py"
DIGITS_TORCH = EXAMPLES / "digits_torch" / "train.py"
UNCHANGED = EXAMPLES / "unchanged" / "train.py"
WITH_TORCH = (DIGITS_TORCH, UNCHANGED)

np = pytest.importorskip("numpy")
if importlib.util.find_spec("sklearn") is None:
    pytest.skip("no scikit-learn installed", allow_module_level=True)


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / "digits" / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ring = load_example("ring.py")


# --- the all-reduce -------------------------------------------------------------------------


def on_each_rank(world_size: int, act: Callable[[Any], Any], timeout_s: float = 20.0) -> list[Any]:
    """Run ``act(ring)`` on a connected ring, a thread a rank; errors are returned as values."""
    port, results = free_port(), [None] * world_size

    def run(rank: int) -> None:
        try:
            with ring.Ring(rank, world_size, "127.0.0.1", port, timeout_s) as own:
                results[rank] = act(own)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return results


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_all_ranks_get_the_sum_taken_in_rank_order(world_size: int) -> None:
    parts = np.random.default_rng(3).standard_normal((world_size, 1000)).astype(np.float32)
    expected = parts[0].copy()
    for part in parts[1:]:
        expected = expected + part

    def reduce(own: Any) -> bytes:
        values = parts[own.rank].copy()
        own.all_reduce(values)
        return values.tobytes()

    assert on_each_rank(world_size, reduce) == [expected.tobytes()] * world_size


def test_arrays_larger_than_every_socket_buffer_pass_round_the_ring() -> None:
    def reduce(own: Any) -> float:
        values = np.full(4_000_000, own.rank + 1, np.float32)
        for _time in range(2):
            own.all_reduce(values)
        return float(values.max())

    assert on_each_rank(3, reduce) == [18.0, 18.0, 18.0]


def test_a_rank_that_leaves_is_named_by_its_neighbours() -> None:
    def reduce_without_rank_1(own: Any) -> None:
        if own.rank != 1:
            own.all_reduce(np.zeros(4_000_000, np.float32))

    zero, one, two = on_each_rank(3, reduce_without_rank_1)

    assert isinstance(zero, ring.PeerLostError)
    assert one is None
    assert isinstance(two, ring.PeerLostError)
    assert str(zero).startswith("rank 0 can't send to rank 1: ")
    assert str(two) == "rank 2 can't receive from rank 1: it closed the connection"


def test_a_silent_neighbour_ends_the_wait() -> None:
    ended = threading.Event()

    def reduce_without_rank_0(own: Any) -> None:
        if own.rank == 0:
            ended.wait(DEADLINE_S)
            return
        try:
            own.all_reduce(np.zeros(4, np.float32))
        finally:
            ended.set()

    _zero, one = on_each_rank(2, reduce_without_rank_0, timeout_s=5.0)  # also to meet

    assert str(one) == "rank 1 can't receive from rank 0: nothing for 5 s"


def test_rank_0_names_the_ranks_that_never_came() -> None:
    port = free_port()

    with pytest.raises(ring.PeerLostError, match=r"ranks \[1, 2\] never came to rank 0"):
        ring.Ring(0, 3, "127.0.0.1", port, timeout_s=0.2)


def test_a_rank_that_finds_no_rank_0_says_so() -> None:
    with pytest.raises(ring.PeerLostError, match="rank 2 can't connect to rank 0: nothing for"):
        ring.Ring(2, 3, "127.0.0.1", free_port(), timeout_s=0.2)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(ring.PeerLostError) as caught:
            ring.Ring(0, 2, "127.0.0.1", port, timeout_s=20.0)

    assert str(caught.value) == f"rank 0 can't listen on 127.0.0.1:{port}: Address already in use"


def test_a_rank_of_another_world_is_refused() -> None:
    port, errors = free_port(), {}

    def join(rank: int, world_size: int) -> None:
        try:
            ring.Ring(rank, world_size, "127.0.0.1", port, timeout_s=20.0)
        except ring.PeerLostError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=join, args=pair) for pair in ((0, 2), (1, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert "does not fit a world of 2 ranks" in errors[0]
    assert errors[1].startswith("rank 1 can't connect to rank 0: ")


def test_a_rank_outside_its_world_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 4 is not within a world of 4"):
        ring.Ring(4, 4, "127.0.0.1", 1)


# --- the jobs -------------------------------------------------------------------------------


class Job:
    """The ranks of one example, started by hand. ``is_fresh``: PyTorch's, too, import all by themselves."""

    def __init__(
        self,
        script: Path,
        world_size: int,
        arguments: list[str],
        environment: Mapping[str, str] | None = None,
        *,
        is_fresh: bool = False,
    ) -> None:
        kept = {key: text for key, text in os.environ.items() if not key.startswith("RANKMEND_")}
        shared = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",  # as torchrun sets it: ranks that spin starve each other
            **(environment or {}),
        }
        self._outputs = [tempfile.TemporaryFile() for _rank in range(world_size)]  # noqa: SIM115 - closed by `close`
        self.ranks: list[subprocess.Popen[bytes] | forked_cli.ForkedProcess] = []
        for rank, output in enumerate(self._outputs):
            variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            if script in WITH_TORCH and not is_fresh:
                started = forked_cli.start_script(
                    script, arguments, environment=variables, stdout=output
                )
            else:
                started = subprocess.Popen(
                    [sys.executable, str(script), *arguments],
                    env=variables,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            self.ranks.append(started)

    @property
    def outputs(self) -> list[str]:
        return [os.pread(file.fileno(), 1 << 20, 0).decode() for file in self._outputs]

    def wait(self) -> tuple[list[int], list[str]]:
        """Return every rank's exit code and output."""
        return [rank.wait(DEADLINE_S) for rank in self.ranks], self.outputs

    def wait_for_checkpoint(self, folder: Path) -> None:
        def is_there() -> bool:
            assert all(rank.poll() is None for rank in self.ranks), self.outputs
            return bool(list(folder.glob("step-*")))

        eventually(is_there, "a first checkpoint")

    def close(self) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait(DEADLINE_S)
        for file in self._outputs:
            file.close()


class Bench:
    """Starts jobs on one set of data and ends what is left of them."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder = folder
        self._data = data
        self._jobs: list[Job] = []

    def start(
        self,
        script: Path,
        name: str,
        world_size: int,
        *extra: str,
        **more: Any,
    ) -> Job:
        arguments = [
            f"--data={self._data}",
            f"--checkpoint-dir={self.checkpoints(name)}",
            f"--result={self.folder / name}.json",
            "--hidden=32",
            "--batch=128",
            "--checkpoint-every=10",
            *extra,
        ]
        self._jobs.append(Job(script, world_size, arguments, **more))
        return self._jobs[-1]

    def start_plain(self, script: Path, world_size: int, *arguments: str) -> Job:
        self._jobs.append(Job(script, world_size, list(arguments)))
        return self._jobs[-1]

    def run(self, script: Path, name: str, world_size: int, *extra: str, **more: Any) -> Any:
        """Run a job to its end and return its result."""
        codes, outputs = self.start(script, name, world_size, *extra, **more).wait()
        assert codes == [0] * world_size, "\n".join(outputs)
        return self.result(name)

    def checkpoints(self, name: str) -> Path:
        return self.folder / f"checkpoints-{name}"

    def result(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text(encoding="ascii"))

    def close(self) -> None:
        for job in self._jobs:
            job.close()


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    load_example("prepare.py").prepare(path)
    return path


@pytest.fixture
def bench(tmp_path: Path, digits: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, digits)
    yield bench
    bench.close()


def test_the_prepared_data_holds_every_image_once(digits: Path) -> None:
    with np.load(digits, allow_pickle=False) as data:
        assert data["train_images"].shape == (1438, 64)
        assert data["test_images"].shape == (359, 64)
        assert float(data["train_images"].max()) == 1.0
        assert sorted(set(data["train_labels"].tolist())) == list(range(10))
    assert [path.name for path in digits.parent.iterdir()] == ["digits.npz"]


def test_training_on_four_ranks_learns_the_digits(bench: Bench) -> None:
    result = bench.run(DIGITS, "four", 4, "--steps=300", "--hidden=128")

    assert result["step"] == 300
    assert result["accuracy_ratio"] > 0.95


def test_one_rank_trains_without_a_launcher(bench: Bench) -> None:
    assert bench.run(DIGITS, "one", 1, "--steps=200")["accuracy_ratio"] > 0.9


def test_the_newest_three_checkpoints_are_kept_and_no_temporary_file(bench: Bench) -> None:
    bench.run(DIGITS, "kept", 2, "--steps=55")

    names = sorted(path.name for path in bench.checkpoints("kept").iterdir())

    assert names == ["step-00000040.npz", "step-00000050.npz", "step-00000055.npz"]


@pytest.mark.timeout(600)  # three runs of three ranks, beside two other tests
@pytest.mark.parametrize(
    ("script", "suffix"),
    [
        pytest.param(DIGITS, "npz", id="numpy"),
        pytest.param(DIGITS_TORCH, "pt", id="torch", marks=[pytest.mark.torch]),
    ],
)
def test_a_resumed_run_ends_with_the_bits_of_an_undisturbed_one(
    bench: Bench, script: Path, suffix: str
) -> None:
    world_size = 3
    undisturbed = bench.run(script, "undisturbed", world_size, "--steps=30")
    bench.run(script, "first-part", world_size, "--steps=20")
    checkpoint = bench.checkpoints("first-part") / f"step-00000010.{suffix}"

    resumed = bench.run(
        script,
        "second-part",
        world_size,
        "--steps=30",
        environment={"RANKMEND_RESUME_PATH": str(checkpoint)},
    )

    assert resumed == undisturbed
    assert not (bench.checkpoints("second-part") / f"step-00000010.{suffix}").exists()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(DIGITS, id="numpy"),
        pytest.param(DIGITS_TORCH, id="torch", marks=[pytest.mark.torch]),
    ],
)
def test_sigterm_at_one_rank_stops_all_at_one_step_and_saves_it(bench: Bench, script: Path) -> None:
    folder = bench.checkpoints("stopped")
    job = bench.start(script, "stopped", 3, "--steps=1000000")
    job.wait_for_checkpoint(folder)

    job.ranks[2].send_signal(signal.SIGTERM)
    codes, outputs = job.wait()

    assert codes == [0, 0, 0], "\n".join(outputs)
    newest = max(path.name for path in folder.iterdir())
    assert newest.startswith(f"step-{bench.result('stopped')['step']:08d}.")


def test_the_death_of_a_rank_ends_its_neighbours_with_an_error_that_names_it(bench: Bench) -> None:
    folder = bench.checkpoints("killed")
    job = bench.start(DIGITS, "killed", 3, "--steps=1000000")
    job.wait_for_checkpoint(folder)

    job.ranks[1].kill()
    codes, outputs = job.wait()

    assert codes == [1, -signal.SIGKILL, 1]
    assert "PeerLostError: rank 0 can't " in outputs[0]
    assert "PeerLostError: rank 2 can't " in outputs[2]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(DIGITS, id="numpy"),
        pytest.param(DIGITS_TORCH, id="torch", marks=[pytest.mark.torch]),
    ],
)
def test_a_leftover_of_an_older_attempt_publishes_no_checkpoint(
    bench: Bench, tmp_path: Path, script: Path
) -> None:
    fence = tmp_path / "fence"
    fence.write_text("2", encoding="ascii")
    environment = {"RANKMEND_FENCE_FILE": str(fence), "RANKMEND_ATTEMPT": "1"}

    bench.run(script, "old", 1, "--steps=20", environment=environment, is_fresh=True)

    assert list(bench.checkpoints("old").iterdir()) == []


@pytest.mark.torch
def test_the_unchanged_script_goes_on_from_its_own_folder(bench: Bench) -> None:
    arguments = [f"--folder={bench.folder / 'unchanged'}", "--steps-per-epoch=3"]

    first = bench.start_plain(UNCHANGED, 2, *arguments, "--epochs=2").wait()
    second = bench.start_plain(UNCHANGED, 2, *arguments, "--epochs=3").wait()

    assert first[0] == second[0] == [0, 0]
    assert [line.split(" loss")[0] for line in first[1][0].splitlines()] == ["epoch 0", "epoch 1"]
    assert [line.split(" loss")[0] for line in second[1][0].splitlines()] == ["epoch 2"]


# --- the demo -------------------------------------------------------------------------------


def test_the_demo_recovers_from_both_faults_and_ends_with_equal_bits() -> None:
    """Runs what `make demo` runs: the agent, the launcher and twelve ranks, on a free port each."""
    demo = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py"), "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert demo.returncode == 0, demo.stderr
    answer = json.loads(demo.stdout)
    undisturbed, killed, stopped = answer["runs"]
    assert answer["is_equal"]
    assert undisturbed["sha256"] == killed["sha256"] == stopped["sha256"]
    assert undisturbed["recovery"] is None
    for run in (killed, stopped):
        recovery = run["recovery"]
        assert recovery["outcome"] == "recovered"
        observed = {name: value for name, value in recovery["phases"].items() if value is not None}
        absent = recovery["phases"].keys() - observed.keys()
        assert absent == {"rendezvous_s"}, "its ranks form no process group of PyTorch"
        assert recovery["total_s"] == pytest.approx(sum(observed.values()))
        assert 0 <= recovery["steps_recomputed"] < 500
    assert answer["metrics"]["series"] > 0
