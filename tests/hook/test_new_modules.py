"""A forked rank looks at the modules alone that its server had not imported: a look at each would copy its page."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankmend.hook import layout
from tests.support.hook import ROOT, Rank, each_python

pytestmark = pytest.mark.process

SEEN = """
import json, sys
sys.path.insert(0, sys.argv[1])
from rankmend.hook import new_modules
import colorsys
new_modules.note()
{script}
found = new_modules.find()
print(json.dumps([[name for name, _module in found], all(m is sys.modules[n] for n, m in found)]))
"""
# `torch.early` knows rankmend where EARLY says so, and torch.held has the function before the fork.
FORKED = """
import os
progress_file = os.environ.pop("RANKMEND_PROGRESS_FILE")  # a fork server has none
import torch.optim.optimizer, torch.early, torch.held, torch.distributed.distributed_c10d
from rankmend.hook import becoming
becoming.load()
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
import torch.late
os.environ.update({environment!r}, RANKMEND_PROGRESS_FILE=progress_file)
from rankmend.hook import imports
imports.begin_forked(frozenset(["torch"]))
becoming.watch_steps()
for module in (torch.held, torch.late, torch.distributed.distributed_c10d):
    assert hasattr(module.init_process_group, "__wrapped__"), module
torch.held.init_process_group()
import lately
torch.optim.optimizer.step()
torch.optim.optimizer.step()
print("done")
"""
OPTIMIZER = """
hooks = []
class Optimizer:
    param_groups, state = [{"lr": 0.1}], {}
    def register_load_state_dict_post_hook(self, hook): pass
the = Optimizer()
def register_optimizer_step_post_hook(hook): hooks.append(hook)
def step():
    for hook in hooks: hook(the, (), {})
"""


def seen(script: str, python: str = sys.executable) -> tuple[list[str], bool]:
    source = SEEN.format(script=script)
    done = subprocess.run(
        [python, "-S", "-c", source, str(ROOT)], capture_output=True, text=True, check=True
    )
    names, is_same = json.loads(done.stdout)
    return names, is_same


@each_python
def test_what_is_imported_after_the_note_is_new(python: str) -> None:
    names, is_same = seen("import tabnanny", python)

    assert names[-1] == "tabnanny"
    assert "colorsys" not in names
    assert is_same


@pytest.mark.parametrize(
    ("script", "new"),
    [
        ("", []),
        ("import colorsys", []),
        ("del sys.modules['colorsys']", []),
        ("del sys.modules['colorsys']; sys.modules['one'] = sys", ["one"]),
        ("sys.modules.update(one=sys, two=json)", ["one", "two"]),
        ("sys.modules.clear(); sys.modules.update(sys=sys, one=sys)", ["one"]),
    ],
)
def test_names_are_in_the_order_of_their_imports(script: str, new: list[str]) -> None:
    assert seen(script) == (new, True)


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    rank = Rank(tmp_path, environment={layout.ENV_AUTO: "0"})  # as in a fork server
    package = tmp_path / "site-packages" / "torch"
    function = "def init_process_group(): return 1\n"
    for name, body in {
        "__init__": "",
        "optim/__init__": "",
        "optim/optimizer": OPTIMIZER,
        "distributed/__init__": "",
        "distributed/distributed_c10d": function,
        "held": "from torch.distributed.distributed_c10d import init_process_group",
        "late": "from torch.distributed.distributed_c10d import init_process_group",
        "early": "import os\nif os.environ.get('EARLY'): import rankmend",
        "../lately": "",
    }.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
    rank.environment["PYTHONPATH"] = f"{rank.site}:{package.parent}"
    return rank


def run_forked(rank: Rank) -> Any:
    told = rank.folder / "imports.json"
    environment = {layout.ENV_AUTO: "1", layout.ENV_IMPORTS_FILE: str(told)}
    assert rank.run(sys.executable, FORKED.format(environment=environment)).strip() == "done"
    return json.loads(told.read_text()) if told.exists() else None


def test_a_forked_rank_is_watched_as_a_fresh_one_and_tells_new_packages(rank: Rank) -> None:
    assert run_forked(rank) == {"more": ["lately"]}

    progress = rank.read()
    assert progress.rendezvous_ended_at_s is not None
    assert progress.step_count == 2


@pytest.mark.parametrize("early", ["", "1"])
def test_the_first_step_is_held_back_where_a_module_of_the_server_knows_rankmend(
    rank: Rank, early: str
) -> None:
    rank.environment["EARLY"] = early
    second_step = "torch.optim.optimizer.step()\nprint"
    source = FORKED.replace(second_step, "os._exit(0)  # tells nothing more\nprint")

    rank.run(sys.executable, source.format(environment={layout.ENV_AUTO: "1"}))

    assert rank.read().step_count == (0 if early else 1)
