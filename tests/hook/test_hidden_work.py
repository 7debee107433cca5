"""What of a rank's communication and reading ran beside its own work: with real PyTorch on gloo, and on real files.

One job for the module. It stands still after each of its parts until its progress file was read.
"""

import importlib.util
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

import rankmend
from rankmend.errors import SourceError
from rankmend.hook import layout
from rankmend.hook.hidden_work import Hidden, ReplicaFinder, length_of
from rankmend.hook.process_groups import (
    BY_HOST,
    BY_NOBODY,
    BY_STREAM,
    BY_STREAM_OF_GPU,
    Groups,
)
from rankmend.hook.writer import Writer
from rankmend.progress import RankProgress
from rankmend.rank_values import ToldHidden
from tests.support.hook import RUN_S_MAX, Rank, each_python

pytestmark = pytest.mark.process
PARTS = ("started", "waited", "computed", "unlooked", "reduced", "reduced late", "loaded", "read")

LATE_S = 0.2
# Two processes, of which the first is the rank. The second is late, so that what is shared takes LATE_S.
JOB = """
import os, sys, threading, time, torch, torch.distributed as dist
import rankmend
LATE_S, STEPS = 0.2, 6
is_rank = len(sys.argv) < 2
if is_rank:
    import subprocess
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RANKMEND_")}
    other = subprocess.Popen([sys.executable, __file__, "other"], env=environment, stdin=subprocess.DEVNULL)
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=int(not is_rank), world_size=2)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def part(name):
    if is_rank:
        print("part " + name, flush=True)
        sys.stdin.readline()

def compute(pieces, piece_s):
    for _ in range(pieces):  # with a look at each backward
        time.sleep(piece_s)
        torch.ones(1, requires_grad=True).sum().backward()

def share(pieces, piece_s):
    for _ in range(STEPS):
        dist.barrier()
        if not is_rank:
            time.sleep(LATE_S)
        work = dist.all_reduce(torch.ones(100), async_op=True)
        if is_rank:
            compute(pieces, piece_s)
            time.sleep(0 if pieces else piece_s)
        work.wait()
        optimizer.step()

for _ in range(3):
    optimizer.step()
part("started")
share(0, 0)
part("waited")
share(20, 2 * LATE_S / 20)
part("computed")
share(0, 2 * LATE_S)
part("unlooked")

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor):
        return tensor.clone()
    @staticmethod
    def backward(context, gradient):
        time.sleep(slow_s)
        return gradient

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(600, 600), torch.nn.Linear(600, 600)
    def forward(self, tensor):
        return self.last(Slow.apply(self.first(tensor)))

replica = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=1)  # two buckets
def train(late_s):
    global slow_s
    for _ in range(12):
        dist.barrier()
        time.sleep(0.0 if is_rank else late_s)
        slow_s = LATE_S if is_rank else 0.0
        replica(torch.ones(2, 600)).sum().backward()
        optimizer.step()
train(LATE_S / 2)
part("reduced")
replica = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
for _ in range(30):
    dist.barrier()
    time.sleep(0.0 if is_rank else LATE_S)
    replica(torch.ones(2, 8)).sum().backward()
    optimizer.step()
part("reduced late")
for batch in torch.utils.data.DataLoader(torch.ones(4, 8), batch_size=2):
    optimizer.step()
part("loaded")

def read():
    with rankmend.background("io"):
        time.sleep(0.2)
threads = [threading.Thread(target=read) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
optimizer.step()
part("read")
dist.barrier()
dist.destroy_process_group()
if is_rank:
    assert other.wait() == 0
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RankProgress]:
    rank = Rank(tmp_path_factory.mktemp("hidden"), environment={layout.ENV_AUTO: "1"})
    script = rank.folder / "job.py"
    script.write_text(JOB)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    job = subprocess.Popen(
        [sys.executable, str(script)], env=rank.variables(), cwd=rank.folder, text=True, **pipes
    )
    bound = threading.Timer(RUN_S_MAX, job.kill)
    bound.start()
    found: dict[str, RankProgress] = {}
    try:
        assert job.stdin is not None
        assert job.stdout is not None
        for line in job.stdout:
            found[line.removeprefix("part ").strip()] = rank.read()
            job.stdin.write("\n")
            job.stdin.flush()
        assert job.wait(RUN_S_MAX) == 0
    finally:
        bound.cancel()
        job.kill()
        job.communicate(timeout=RUN_S_MAX)
    return found


def since(told: dict[str, RankProgress], part: str) -> tuple[ToldHidden, float]:
    """Return what a part added to the rank's hidden times, and for how long it waited in it."""
    before, after = (told[name] for name in (PARTS[PARTS.index(part) - 1], part))
    one, two = before.hidden or ToldHidden(), after.hidden or ToldHidden()
    values = {
        field.name: getattr(two, field.name) - getattr(one, field.name)
        for field in fields(ToldHidden)
    }
    assert before.last is not None
    assert after.last is not None
    return ToldHidden(**values), after.last.waited_s - before.last.waited_s


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed")
class TestPyTorch:
    def test_communication_that_is_waited_for_at_once_is_not_hidden(
        self, told: dict[str, RankProgress]
    ) -> None:
        hidden, waited_s = since(told, "waited")

        assert hidden.works >= 6
        assert hidden.works_most_s < 0.2 * waited_s

    def test_communication_with_enough_compute_behind_its_issue_is_hidden(
        self, told: dict[str, RankProgress]
    ) -> None:
        hidden, waited_s = since(told, "computed")

        assert hidden.works_least_s > waited_s
        assert 0.5 * 6 * LATE_S < hidden.works_least_s <= hidden.works_most_s, "late 6 times"

    def test_end_that_nobody_saw_leaves_a_range(self, told: dict[str, RankProgress]) -> None:
        hidden, _waited_s = since(told, "unlooked")

        assert hidden.works_least_s < 0.2 * hidden.works_most_s
        assert hidden.works_most_s > 0.9 * 6 * 2 * LATE_S, (
            "all of the compute between issue and wait"
        )

    def test_ddp_tells_the_window_of_its_buckets_and_how_much_of_it_is_under_compute(
        self, told: dict[str, RankProgress]
    ) -> None:
        hidden, _waited_s = since(told, "reduced")

        assert hidden.has_replica
        assert hidden.samples >= 1
        assert hidden.overlap_s > 0.5 * hidden.window_s

    def test_model_that_follows_another_is_found_and_hides_nothing_where_it_has_one_bucket(
        self, told: dict[str, RankProgress]
    ) -> None:
        hidden, _waited_s = since(told, "reduced late")

        assert hidden.samples >= 1
        assert hidden.overlap_s < 0.2 * hidden.window_s
        assert not hidden.has_untimed

    def test_loader_without_workers_hides_nothing(self, told: dict[str, RankProgress]) -> None:
        hidden = told["loaded"].hidden

        assert hidden is not None
        assert (hidden.loads_itself, hidden.loads_in_workers) == (True, False)

    def test_reading_in_several_threads_counts_once(self, told: dict[str, RankProgress]) -> None:
        hidden, _waited_s = since(told, "read")

        assert hidden.reads == 2
        assert hidden.reads_s >= 0.19


# Without PyTorch ---------------------------------------------------------------------------------


class Work:
    """A collective that is complete when told so."""

    def __init__(self) -> None:
        self.is_over = False

    def is_completed(self) -> bool:
        return self.is_over


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


@pytest.fixture
def writer(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Writer:
    writer = Writer(str(rank.path))
    writer.step(1)
    monkeypatch.setattr(rankmend, "_writer", writer)
    return writer


class OwnTime:
    """A writer of which the own time is set."""

    def __init__(self, writer: Writer) -> None:
        self.now_ns = 0
        self._writer = writer

    def own_ns(self) -> int:
        return self.now_ns

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)


def told_of(rank: Rank) -> tuple[int, float, float]:
    hidden = rank.read().hidden
    assert hidden is not None
    return hidden.works, hidden.works_least_s * 1e9, hidden.works_most_s * 1e9


def test_collectives_in_flight_at_once_count_once(writer: Writer, rank: Rank) -> None:
    hidden, own = Hidden(), OwnTime(writer)
    first, second = Work(), Work()

    hidden.issued(first, own, True)
    own.now_ns = 500
    hidden.issued(second, own, True)
    own.now_ns = 600
    hidden.waits(second, own)
    own.now_ns = 1000
    hidden.waits(first, own)
    hidden._tell(writer)

    assert told_of(rank) == pytest.approx((2, 1000, 1000))


def test_end_lies_between_the_last_look_before_it_and_the_first_behind_it(
    writer: Writer, rank: Rank
) -> None:
    hidden, own = Hidden(), OwnTime(writer)
    work = Work()

    hidden.issued(work, own, True)
    own.now_ns = 300
    hidden.look(own)
    work.is_over = True
    own.now_ns = 700
    hidden.look(own)
    own.now_ns = 2000
    hidden.waits(work, own)
    hidden._tell(writer)

    assert told_of(rank) == pytest.approx((1, 300, 700))


def test_collectives_that_nobody_waits_for_are_bounded_and_not_kept_alive(
    writer: Writer, rank: Rank
) -> None:
    hidden, own = Hidden(), OwnTime(writer)
    kept = [Work() for _ in range(200)]

    for number, work in enumerate([*kept, *(Work() for _ in range(200))]):
        own.now_ns = number
        hidden.issued(work, own, True)

    assert len(hidden._flying) <= 64
    assert rank.read().hidden == ToldHidden(has_untimed=True)
    references = [entry[0] for entry in hidden._flying.values()]
    kept.clear()
    assert [one() for one in references] == [None] * len(references)


class Group:
    def __init__(self, backend: str, *devices: str) -> None:
        self.backend = backend
        self._device_types = [SimpleNamespace(type=device) for device in devices]

    def _get_backend_name(self) -> str:
        return self.backend


@pytest.mark.parametrize(
    ("group", "seen_by"),
    [
        (Group("gloo", "cpu", "cuda"), BY_HOST),
        (Group("nccl", "cuda"), BY_STREAM),
        (Group("nccl", "cpu", "cuda"), BY_STREAM_OF_GPU),
        (Group("mpi", "cpu"), BY_NOBODY),
        (Group("undefined", "cuda"), BY_NOBODY),
        (object(), BY_NOBODY),
    ],
)
def test_host_sees_the_end_of_gloos_collectives_and_a_stream_that_of_nccls(
    group: object, seen_by: int
) -> None:
    assert Groups().of(group) == (0, seen_by)


def test_collectives_whose_end_the_host_does_not_see_are_said_to_be_untimed(
    writer: Writer, rank: Rank
) -> None:
    hidden, own = Hidden(), OwnTime(writer)
    work = Work()

    hidden.issued(work, own, False)
    own.now_ns = 2 * 10**6
    hidden.waits(work, own)

    assert rank.read().hidden == ToldHidden(has_untimed=True)


def test_collective_of_a_device_that_is_waited_for_at_once_hides_nothing(
    writer: Writer, rank: Rank
) -> None:
    hidden, own = Hidden(), OwnTime(writer)

    for _ in range(3):
        work = Work()
        hidden.issued(work, own, False)
        own.now_ns += 20_000
        hidden.waits(work, own)

    assert rank.read().hidden is None


class Model:
    """Stands for DistributedDataParallel."""

    def _pre_forward(self) -> str:
        return "its own"


def finder_for(hidden: Hidden) -> ReplicaFinder:
    return ReplicaFinder(
        Model,
        hidden,
        lambda owner, name, make, *rest: setattr(owner, name, make(vars(owner)[name], *rest)),
    )


@pytest.mark.parametrize(
    ("calls", "facts"),
    [("a", None), ("aa", ToldHidden(has_replica=True)), ("ab", ToldHidden(has_untimed=True))],
)
def test_model_is_found_by_its_second_call_and_several_are_not_told_apart(
    writer: Writer, rank: Rank, calls: str, facts: ToldHidden | None
) -> None:
    original = Model._pre_forward
    finder = finder_for(Hidden())
    finder.begin()
    models = {name: Model() for name in "ab"}

    try:
        assert {models[name]._pre_forward() for name in calls} == {"its own"}
        assert rank.read().hidden == facts
        assert (Model._pre_forward is original) is (facts is not None)
    finally:
        Model._pre_forward = original  # type: ignore[method-assign]


class Replica:
    """A DistributedDataParallel with these statistics."""

    def __init__(self, **told: int) -> None:
        self.told = told

    def _get_ddp_logging_data(self) -> dict[str, int]:
        return self.told


@pytest.mark.parametrize(
    "told",
    [
        {"iteration": 0},
        {"iteration": 2, "backward_comm_time": 9, "backward_compute_comm_overlap_time": 3},
        {"iteration": 100, "backward_comm_time": 9, "backward_compute_comm_overlap_time": 10},
        {"iteration": 100, "backward_comm_time": 9, "backward_compute_comm_overlap_time": -1},
        {"iteration": 100, "backward_comm_time": 0, "backward_compute_comm_overlap_time": 0},
        {"iteration": 100, "backward_comm_time": 9},
        {},
    ],
)
def test_statistics_that_say_nothing_or_the_impossible_are_left_out(
    writer: Writer, rank: Rank, told: dict[str, int]
) -> None:
    hidden = Hidden()
    replica = Replica(**told)
    hidden.follow(replica, writer)

    hidden.look_at_replica(writer)

    assert rank.read().hidden == ToldHidden(has_replica=True)


def test_sampled_iteration_counts_once_however_often_it_is_looked_at(
    writer: Writer, rank: Rank
) -> None:
    hidden = Hidden()
    replica = Replica(iteration=100, backward_comm_time=9, backward_compute_comm_overlap_time=3)
    hidden.follow(replica, writer)

    for _ in range(3):
        hidden._look_at = 0
        hidden.look_at_replica(writer)

    found = rank.read().hidden
    assert found is not None
    assert (found.samples, found.window_s, found.overlap_s) == (1, 9e-9, 3e-9)


@pytest.mark.parametrize(
    ("intervals", "covered"),
    [([], 0), ([(0, 5)], 5), ([(0, 5), (2, 3)], 5), ([(4, 6), (0, 5)], 6), ([(0, 1), (3, 4)], 2)],
)
def test_intervals_that_overlap_count_once(intervals: list[tuple[int, int]], covered: int) -> None:
    assert length_of(intervals) == covered


def test_file_of_a_rank_that_tells_nothing_of_it_has_none(writer: Writer, rank: Rank) -> None:
    assert rank.read().hidden is None


def test_file_of_an_older_hook_reads_as_nothing_told(writer: Writer, rank: Rank) -> None:
    size = layout.RING_AT - layout.HIDDEN_AT
    with rank.path.open("r+b") as file:
        file.seek(layout.HIDDEN_AT)
        file.write(bytes(size))

    assert rank.read().hidden is None


def test_times_that_can_not_be_are_an_error(writer: Writer, rank: Rank) -> None:
    writer.tell_hidden(1, 5, 4, 0, 0, 0)

    with pytest.raises(SourceError, match="impossible hidden times"):
        rank.read()


@each_python
def test_reading_beside_the_training_is_hidden_but_for_what_the_rank_waits_for(
    rank: Rank, python: str
) -> None:
    took_s = rank.run(
        python,
        """
        import threading, time, rankmend
        begun, go = threading.Event(), threading.Event()
        def read():
            began_s = time.monotonic()
            with rankmend.background("io"):
                begun.set()
                go.wait()
                time.sleep(0.3)
            print(time.monotonic() - began_s)
        rankmend.step(1)
        thread = threading.Thread(target=read)
        thread.start()
        begun.wait()
        time.sleep(0.2)  # the rank's own work
        with rankmend.section("io"):
            go.set()
            thread.join()
        rankmend.step(2)
        with rankmend.background("dancing"), rankmend.background([]):
            pass
        """,
    )

    progress = rank.read()
    assert progress.hidden is not None
    assert progress.last is not None
    assert progress.hidden.reads == 1
    assert progress.hidden.reads_s >= 0.19
    assert progress.hidden.reads_s <= float(took_s) - 0.29


@each_python
def test_child_that_is_forked_while_a_thread_reads_does_not_hang(rank: Rank, python: str) -> None:
    said = rank.run(
        python,
        """
        import os, threading, rankmend
        rankmend.step(1)
        background = rankmend.background  # kept from before the fork
        go, done = threading.Event(), threading.Event()
        def read():
            with background("io"):
                go.set()
                done.wait()
        thread = threading.Thread(target=read)
        thread.start()
        go.wait()
        pid = os.fork()
        if pid == 0:
            with background("io"):
                pass
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        done.set()
        thread.join()
        """,
    )

    assert said == ""
    assert rank.read().hidden is not None
