"""Steps without code: with a stand-in for torch.optim on every Python, and with PyTorch itself."""

import importlib.util
import sys
from pathlib import Path

import pytest

from rankmend.hook import layout
from tests.support.hook import Rank, each_python

pytestmark = pytest.mark.process

DISTRIBUTED = """\
from .distributed_c10d import init_process_group

def is_initialized():
    return False
"""
# The part of torch.optim that counts: hooks run after each step, in this order of calls.
OPTIMIZER = """\
_hooks = {}

def register_optimizer_step_post_hook(hook):
    _hooks[len(_hooks)] = hook

class Optimizer:
    counts = False
    def __init__(self):
        self.state = {}
        self.param_groups = [{"lr": 0.1}]
        self.after_load = []
    def register_load_state_dict_post_hook(self, hook):
        self.after_load.append(hook)
    def load(self, step):
        self.state = {0: {"step": step}} if self.counts else {}
        for hook in self.after_load:
            hook(self)
    def step(self):
        if self.counts:
            for state in self.state.values():
                state["step"] += 1
        for hook in _hooks.values():
            hook(self, (), {})

class SGD(Optimizer):
    pass

class Adam(Optimizer):
    counts = True
    def __init__(self, *steps):
        super().__init__()
        self.state = {number: {"step": step} for number, step in enumerate(steps or (0,))}
"""


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path, environment={layout.ENV_AUTO: "1"})


@pytest.fixture
def stand_in(rank: Rank) -> Rank:
    package = rank.folder / "lib" / "torch"
    (package / "optim").mkdir(parents=True)
    (package / "distributed").mkdir()
    (package / "__init__.py").write_text("from torch import distributed, optim")
    (package / "distributed" / "__init__.py").write_text(DISTRIBUTED)
    (package / "distributed" / "distributed_c10d.py").write_text("def init_process_group(): pass")
    (package / "optim" / "__init__.py").write_text("from .optimizer import *")
    (package / "optim" / "optimizer.py").write_text(OPTIMIZER)
    rank.environment["PYTHONPATH"] = f"{rank.site}:{package.parent}"
    return rank


@each_python
def test_steps_of_an_optimizer_without_a_count_are_relative(stand_in: Rank, python: str) -> None:
    stand_in.run(
        python,
        """
        from torch.optim import SGD
        optimizer = SGD()
        for _ in range(3):
            optimizer.step()
        """,
    )

    progress = stand_in.read()
    assert stand_in.steps() == [1, 2, 3]
    assert (progress.is_auto, progress.is_relative) == (True, True)


@each_python
@pytest.mark.parametrize(
    ("restored", "first"), [("0", 1), ("700", 701), ("650, 700, 0", 701), ("0, 700", 701)]
)
def test_steps_of_an_optimizer_with_a_count_are_its_own(
    stand_in: Rank, python: str, restored: str, first: int
) -> None:
    stand_in.run(
        python,
        f"""
        import torch
        optimizer = torch.optim.Adam({restored})
        optimizer.step()
        optimizer.step()
        """,
    )

    progress = stand_in.read()
    assert stand_in.steps() == [first, first + 1]
    assert (progress.is_auto, progress.is_relative) == (True, False)


@each_python
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("a b a b a b", [1, 2, 3]),  # two that take turns: a generator and its judge
        ("a a b a a b", [1, 2, 3, 4]),  # one of them twice as often
        ("a b c a b c", [1, 2]),  # one for each layer
        ("a a b b b", [1, 2, 3, 4]),  # the script goes on with another one
    ],
)
def test_training_step_with_several_optimizers_counts_once(
    stand_in: Rank, python: str, order: str, expected: list[int]
) -> None:
    stand_in.run(
        python,
        f"""
        from torch.optim import SGD
        optimizers = {{name: SGD() for name in "abc"}}
        for name in "{order}".split():
            optimizers[name].step()
        """,
    )

    assert stand_in.steps() == expected


# torch.distributed.checkpoint's state_dict.py: fills the state of an optimizer before it is loaded.
FILLING = """
def _init_optim_state(optimizer):
    rate, optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"], 0.0
    optimizer.step()
    optimizer.param_groups[0]["lr"] = rate
"""


@each_python
@pytest.mark.parametrize(
    ("script", "expected", "is_relative"),
    [
        ("a = Adam(); _init_optim_state(a); a.load(60)", [61, 62, 63], False),
        ("a = SGD(); _init_optim_state(a); a.load(60)", [1, 2, 3], True),
        ("a = Adam(); _init_optim_state(a)", [2, 3, 4], False),  # and nothing to load
        ("a = Adam(); a.step(); a.load(60)", [61, 62, 63], False),  # a check of shapes
        ("a = SGD(); a.step(); a.load(60)", [1, 2, 3], True),
        ("a = Adam(); [a.step() for _ in range(11)]; a.load(60)", [61, 62, 63], False),
        ("a = SGD(); [a.step() for _ in range(11)]; a.load(60)", [1, 2, 3], True),
        # More than any warm-up: these train.
        (
            "a = Adam(); [a.step() for _ in range(18)]; a.load(60)",
            [*range(1, 19), 61, 62, 63],
            False,
        ),
        ("a = Adam(60)", [61, 62, 63], False),
        ("a = Adam(); b = Adam(); a.step(); b.step(); a.load(60); b.load(60)", [61, 62, 63], False),
    ],
)
def test_step_before_the_load_of_a_checkpoint_is_none_of_the_trainings(
    stand_in: Rank, python: str, script: str, expected: list[int], is_relative: bool
) -> None:
    stand_in.environment[layout.ENV_RESUME_PATH] = "/checkpoints/60"

    stand_in.run(
        python,
        f"""
from torch.optim import SGD, Adam
{FILLING}
{script}
for _ in range(3):
    a.step()
""",
    )

    progress = stand_in.read()
    assert stand_in.steps() == expected
    assert (progress.is_auto, progress.is_relative) == (True, is_relative)


@each_python
def test_step_with_a_learning_rate_of_nothing_counts_where_the_script_makes_it(
    stand_in: Rank, python: str
) -> None:
    stand_in.run(
        python,
        """
        from torch.optim import Adam
        optimizer = Adam()
        optimizer.param_groups[0]["lr"] = 0.0  # a schedule that begins there
        for _ in range(3):
            optimizer.step()
        """,
    )

    assert stand_in.steps() == [1, 2, 3]


@each_python
def test_first_step_that_was_held_back_keeps_its_time(stand_in: Rank, python: str) -> None:
    stand_in.environment[layout.ENV_RESUME_PATH] = "/checkpoints/60"

    stand_in.run(
        python,
        """
        import time
        from torch.optim import SGD
        optimizer = SGD()
        optimizer.step()
        time.sleep(0.3)
        optimizer.step()
        """,
    )

    first, second = stand_in.read().records
    assert second.ended_at_s - first.ended_at_s >= 0.3


@each_python
def test_steps_are_told_soon_where_nothing_is_loaded(stand_in: Rank, python: str) -> None:
    stand_in.environment[layout.ENV_RESUME_PATH] = "/checkpoints/60"

    stand_in.run(
        python,
        """
        import os, time
        from torch.optim import SGD
        optimizer = SGD()
        optimizer.step()
        time.sleep(2.1)
        optimizer.step()
        os._exit(0)  # as killed: nothing is told at the end
        """,
    )

    assert stand_in.steps() == [1, 2]


@each_python
def test_optimizer_that_is_thrown_away_does_not_end_the_counting(
    stand_in: Rank, python: str
) -> None:
    stand_in.run(
        python,
        """
        from torch.optim import SGD
        optimizer = SGD()
        optimizer.step()
        kept = optimizer, SGD()
        for _ in range(3):
            kept[1].step()
        """,
    )

    assert stand_in.steps() == [1, 2, 3]  # the first of another one may end the step before


@each_python
@pytest.mark.parametrize("style", ["rankmend.step", "step"])
def test_step_told_by_the_script_wins_over_the_counting(
    stand_in: Rank, python: str, style: str
) -> None:
    stand_in.run(
        python,
        f"""
        import rankmend
        from rankmend import step
        from torch.optim import SGD
        optimizer = SGD()
        optimizer.step()
        for number in (100, 101):
            optimizer.step()
            {style}(number)
        """,
    )

    progress = stand_in.read()
    assert stand_in.steps() == [1, 2, 100, 101]
    assert (progress.is_auto, progress.is_relative) == (False, False)


@each_python
@pytest.mark.parametrize(
    "how", ["import rankmend", "import rankmend as told", "from rankmend import step"]
)
def test_first_step_told_by_the_script_is_not_counted_as_well(
    stand_in: Rank, python: str, how: str
) -> None:
    name = {"import rankmend": "rankmend.step", "import rankmend as told": "told.step"}
    stand_in.run(
        python,
        f"""
        {how}
        from torch.optim import SGD
        optimizer = SGD()
        for number in (101, 102):
            optimizer.step()
            {name.get(how, "step")}(number)
        """,
    )

    progress = stand_in.read()
    assert stand_in.steps() == [101, 102]
    assert (progress.is_auto, progress.is_relative, progress.step_count) == (False, False, 2)


@each_python
def test_sections_told_by_the_script_leave_the_counting_on(stand_in: Rank, python: str) -> None:
    stand_in.run(
        python,
        """
        import rankmend
        rankmend.attach()
        from torch.optim import Adam
        optimizer = Adam()
        for _ in range(2):
            with rankmend.section("compute"):
                optimizer.step()
        """,
    )

    assert stand_in.steps() == [1, 2]
    assert stand_in.read().is_auto


@each_python
def test_forked_worker_with_an_optimizer_counts_nothing(stand_in: Rank, python: str) -> None:
    stand_in.run(
        python,
        """
        import os
        from torch.optim import SGD
        optimizer = SGD()
        pid = os.fork()
        if pid == 0:
            optimizer.step()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        optimizer.step()
        """,
    )

    assert stand_in.steps() == [1]


@each_python
def test_import_system_is_left_as_it_was(stand_in: Rank, python: str) -> None:
    told = stand_in.run(
        python,
        """
        import importlib.util, inspect, pickle, sys
        importlib.util.find_spec("torch.optim.optimizer")  # loads torch, looks, and so counts
        import torch.optim.optimizer as module
        loader = module.__spec__.loader
        print(type(loader).__name__, "exec_module" in vars(loader))
        print([finder for finder in sys.meta_path if "rankmend.hook" in str(finder)])
        print(pickle.loads(pickle.dumps(loader)).path == module.__file__)
        print("register_optimizer_step_post_hook" in inspect.getsource(module))
        module.SGD().step()
        importlib.reload(module)
        """,
    )

    assert told.splitlines() == ["SourceFileLoader False", "[]", "True", "True"]
    assert stand_in.steps() == [1]


@each_python
def test_look_for_the_module_without_loading_it_does_not_end_the_wait(
    stand_in: Rank, python: str
) -> None:
    stand_in.run(
        python,
        """
        import sys
        for finder in list(sys.meta_path):
            if hasattr(finder, "find_spec"):
                finder.find_spec("torch.optim.optimizer", [])
        from importlib.util import find_spec, module_from_spec
        from torch.optim import SGD
        SGD().step()
        """,
    )

    assert stand_in.steps() == [1]


@each_python
@pytest.mark.parametrize(
    ("text", "error"),
    [("1 / 0", "ZeroDivisionError"), ("import nonsense_module", "ModuleNotFoundError")],
)
def test_torch_that_fails_to_import_fails_as_ever(
    stand_in: Rank, python: str, text: str, error: str
) -> None:
    (stand_in.folder / "lib/torch/optim/optimizer.py").write_text(text)

    told = stand_in.run(
        python,
        """
        for _ in range(2):
            try:
                import torch
            except Exception as error:
                print(type(error).__name__)
        """,
    )

    assert told.splitlines() == [error] * 2


@each_python
def test_torch_older_than_the_hooks_trains_uncounted(stand_in: Rank, python: str) -> None:
    path = stand_in.folder / "lib/torch/optim/optimizer.py"
    path.write_text(path.read_text().replace("def register_optimizer_step_post_hook", "def other"))

    assert stand_in.run(python, "import torch; torch.optim.SGD().step(); print('on')") == "on\n"
    assert stand_in.steps() == []


@each_python
def test_exception_out_of_a_signal_handler_is_not_swallowed_by_the_counting(
    stand_in: Rank, python: str
) -> None:
    told = stand_in.run(
        python,
        """
        import signal
        from torch.optim import SGD
        optimizer = SGD()
        class Interrupt(Exception):
            pass
        def handler(*_):
            raise Interrupt
        signal.signal(signal.SIGALRM, handler)
        optimizer.step()  # the first one attaches, once, where what a handler raises may be lost
        interrupted = 0
        while interrupted < 200:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002)
                for _ in range(200000):
                    optimizer.step()
                raise SystemExit("swallowed: %d" % interrupted)
            except Interrupt:
                interrupted += 1
        print("ended")
        """,
    )

    assert told == "ended\n"
    assert stand_in.read().step_count > 0


@each_python
@pytest.mark.parametrize(
    "place",
    [
        "optimizer.register_load_state_dict_post_hook = interrupt",
        "optimizer.state = Fields(values=interrupt)",
        "sys.modules['torch'].cuda = Fields(is_initialized=interrupt)",
    ],
)
def test_exception_out_of_a_signal_handler_is_not_swallowed_at_the_first_step(
    stand_in: Rank, python: str, place: str
) -> None:
    told = stand_in.run(
        python,
        """
        import os, signal, sys
        from torch.optim import SGD
        class Interrupt(Exception):
            pass
        class Fields:
            def __init__(self, **fields):
                self.__dict__.update(fields)
        def handler(*_):
            raise Interrupt
        signal.signal(signal.SIGUSR1, handler)
        def interrupt(*_):
            os.kill(os.getpid(), signal.SIGUSR1)
            for _ in range(1000):
                pass
        optimizer = SGD()
        PLACE
        try:
            optimizer.step()
        except Interrupt:
            print("interrupted")
        """.replace("PLACE", place),
    )

    assert told == "interrupted\n"


@each_python
def test_module_run_with_m_and_script_are_counted_alike(stand_in: Rank, python: str) -> None:
    script = stand_in.folder / "lib" / "train.py"
    script.write_text("from torch.optim import SGD\nSGD().step()\n")

    stand_in.run_command([python, "-m", "train"])
    as_module = stand_in.steps()
    stand_in.run_command([python, str(script)])

    assert (as_module, stand_in.steps()) == ([1], [1])


# With PyTorch itself ------------------------------------------------------------------------

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed"),
]

MODEL = """
import torch
model = torch.nn.Linear(2, 2)
def train(optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
"""


def _run_torch(rank: Rank, code: str) -> list[str]:
    script = rank.folder / "train.py"
    script.write_text(MODEL + code)
    return rank.run_command([sys.executable, str(script)]).stdout.splitlines()


class TestPyTorch:
    pytestmark = needs_torch

    def test_adamw_goes_on_from_the_restored_number(self, rank: Rank) -> None:
        _run_torch(
            rank,
            """
optimizer = torch.optim.AdamW(model.parameters())
saved = optimizer.state_dict()
saved["state"] = {
    number: {"step": torch.tensor(5.0), "exp_avg": torch.ones_like(one), "exp_avg_sq": torch.ones_like(one)}
    for number, one in enumerate(model.parameters())
}
torch.save(saved, "state.pt")
optimizer.load_state_dict(torch.load("state.pt"))
train(optimizer, 2)
""",
        )

        assert rank.steps() == [6, 7]
        assert not rank.read().is_relative

    def test_state_that_a_distributed_checkpoint_fills_and_loads_counts_no_step(
        self, rank: Rank
    ) -> None:
        rank.environment[layout.ENV_RESUME_PATH] = "/checkpoints/5"

        _run_torch(
            rank,
            """
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
optimizer = torch.optim.AdamW(model.parameters())
weights, state = get_state_dict(model, optimizer)
assert all(float(one["step"]) == 1.0 for one in state["state"].values()), "it has stepped"
for one in state["state"].values():
    one["step"] = torch.tensor(60.0)
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
train(optimizer, 3)
""",
        )

        assert rank.steps() == [61, 62, 63]
        assert not rank.read().is_relative

    def test_sgd_pickles_copies_and_counts_relatively(self, rank: Rank) -> None:
        told = _run_torch(
            rank,
            """
import copy, pickle
optimizer = torch.optim.SGD(model.parameters(), 0.1)
train(optimizer, 1)
optimizer = pickle.loads(pickle.dumps(optimizer))
copy.deepcopy(optimizer)
print(type(optimizer).__name__)
train(torch.optim.SGD(model.parameters(), 0.1), 2)
""",
        )

        assert told == ["SGD"]
        assert rank.read().is_relative
        assert rank.steps()[:1] == [1]

    def test_compiled_optimizer_step_counts_without_compiling_more_for_each_step(
        self, rank: Rank
    ) -> None:
        told = _run_torch(
            rank,
            """
from torch._dynamo.utils import counters
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1, 2)).sum().backward()
step = torch.compile(optimizer.step, backend="eager")
for _ in range(3):
    step()
after_three = counters["frames"]["total"]
for _ in range(20):
    step()
print(counters["frames"]["total"] - after_three, counters["stats"]["unique_graphs"])
""",
        )

        assert told == ["0 1"]
        assert rank.steps() == list(range(1, 24))

    def test_data_loader_workers_forked_and_spawned_disturb_nothing(self, rank: Rank) -> None:
        _run_torch(
            rank,
            """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, number):
        inner = torch.nn.Linear(1, 1)  # a worker that trains a little itself
        optimizer = torch.optim.SGD(inner.parameters(), 0.1)
        inner(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        return torch.ones(2)

if __name__ == "__main__":
    optimizer = torch.optim.AdamW(model.parameters())
    for method, workers in (("fork", 2), ("spawn", 1)):  # a spawned one imports torch again
        loader = torch.utils.data.DataLoader(
            Data(), batch_size=2, num_workers=workers, multiprocessing_context=method
        )
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
""",
        )

        assert rank.steps() == [1, 2, 3, 4]
        assert not rank.read().is_relative
