"""Forked ranks of scripts that change the environment around their imports: real ranks tell, and are forked."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankmend.clock import SystemClock
from rankmend.hook import layout
from recovery.launcher.guardian.packets import Exited, SpawnFailed
from recovery.launcher.ranks.command import RankCommand
from recovery.launcher.ranks.fork_server import ServerState
from recovery.launcher.ranks.rank_imports import KeptImports
from tests.support.eventually import eventually
from tests.support.fork_bench import Node
from tests.support.hook import each_python

pytestmark = pytest.mark.process

READER = "import os; FLAG = os.environ.get('FLAG')"
HEAD = """
import json, os, sys
began = dict(os.environ)
ahead = [name for name in ("reader", "second", "setter", "wave") if name in sys.modules]
"""
TAIL = """
from rankmend.hook import imports
imports.tell()
modules = {name: getattr(sys.modules.get(name), "FLAG", "absent") for name in ("reader", "second")}
print(json.dumps([began, ahead, modules, dict(os.environ)]))
"""


class Scripted:
    """Has the ranks of one script told their imports, and forks them."""

    def __init__(self, node: Node, text: str, python: str | None = None) -> None:
        self.node = node
        if python is not None:
            node.python = python
            node.server = node.make_server()
        node.add_package("reader", READER)
        node.add_package("second", READER)
        self.script = node.script(HEAD + text + TAIL)

    def run_afresh(self, count: int = 2) -> list[list[Any]]:
        """Run it in fresh ranks, from which the server learns, and return what each printed."""
        lists = [self.node.folder / f"imports-{rank}.json" for rank in range(count)]
        for rank, path in enumerate(lists):
            self.node.start_afresh(
                self.script, rank=rank, more={layout.ENV_IMPORTS_FILE: str(path)}
            )
        printed = self._printed(count)
        self.node.server.learn_from(lists)
        self.node.begin(ServerState.READY, ServerState.GIVEN_UP)
        return printed

    def fork(self, count: int = 2, attempt: int = 2) -> list[list[Any]]:
        for rank in range(count):
            forked = self.node.fork(
                self.script, rank=rank, attempt=attempt, tells_to=self.tells_to(rank, attempt)
            )
            assert forked, self.node.server.why_not
        return self._printed(count)

    def tells_to(self, rank: int, attempt: int = 2) -> Path:
        return self.node.folder / f"imports-{attempt}-{rank}.json"

    def _printed(self, count: int) -> list[list[Any]]:
        ended = len([one for one in self.node.events if isinstance(one, Exited)])
        self.node.of(Exited, ended + count)
        return [json.loads(self.node.output(rank).read_text()) for rank in range(count)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def compare(fresh: list[Any], forked: list[Any]) -> None:
    """Assert that a forked rank began with, read and ended with the variables of a fresh one."""
    own = {layout.ENV_ATTEMPT, layout.ENV_IMPORTS_FILE}
    for number in (0, 3):
        before, after = (
            {name: value for name, value in one[number].items() if name not in own}
            for one in (fresh, forked)
        )
        assert after == before
    assert forked[2] == fresh[2]


@each_python
def test_a_package_has_in_a_forked_rank_what_the_script_had_set_before_its_import(
    node: Node, python: str
) -> None:
    text = """
os.environ["FLAG"] = "first"
del os.environ["OMP_NUM_THREADS"]
import reader
os.environ["FLAG"] = "later"
import second
"""
    job = Scripted(node, text, python)
    fresh = job.run_afresh()

    forked = job.fork()

    assert node.server.left_out == {}
    for before, after in zip(fresh, forked, strict=True):
        assert after[1] == ["reader", "second"]
        assert after[2] == {"reader": "first", "second": "later"}
        compare(before, after)


@each_python
def test_a_variable_that_is_set_after_the_imports_is_not_seen_by_them(
    node: Node, python: str
) -> None:
    job = Scripted(node, "import reader, second\nos.environ['FLAG'] = 'late'", python)
    fresh = job.run_afresh()

    forked = job.fork()

    assert node.server.left_out == {}
    assert forked[0][1] == ["reader", "second"]
    assert forked[0][2] == {"reader": None, "second": None}
    compare(fresh[0], forked[0])


def test_what_is_imported_after_ranks_set_different_values_is_left_out_and_the_rest_forks(
    node: Node,
) -> None:
    text = """
import reader
os.environ["FLAG"] = os.environ["RANK"]
import second, wave  # a module of Python's own
"""
    job = Scripted(node, text)
    fresh = job.run_afresh()

    forked = job.fork()

    assert node.server.left_out == {
        "second": "is imported after a change of FLAG that differs between the ranks"
    }
    for rank, (before, after) in enumerate(zip(fresh, forked, strict=True)):
        assert after[1] == ["reader", "wave"]
        assert after[2] == {"reader": None, "second": str(rank)}
        compare(before, after)


def test_a_package_that_is_imported_by_a_module_of_the_users_own_meets_what_that_has_set(
    node: Node,
) -> None:
    users = node.folder / "settings"
    users.mkdir()
    (users / "settings.py").write_text("import os; os.environ['FLAG'] = 'set'; import reader")
    text = f"sys.path.append({str(users)!r})\nimport settings, second"
    job = Scripted(node, text)
    fresh = job.run_afresh()

    forked = job.fork()

    assert forked[0][1] == ["reader", "second"]
    assert forked[0][2] == {"reader": "set", "second": "set"}
    compare(fresh[0], forked[0])


@each_python
def test_what_an_import_has_set_is_there_from_the_start_and_what_the_script_set_is_not(
    node: Node, python: str
) -> None:
    node.add_package("setter", "import os; os.environ['MADE'] = 'by import'; import reader")
    text = """
os.environ["FLAG"] = "script"
import setter
os.environ["MADE"] += ", then script"
import second
"""
    job = Scripted(node, text, python)
    fresh = job.run_afresh()

    forked = job.fork()

    assert node.server.left_out == {}
    began, ahead, modules, ended = forked[0]
    assert ahead == ["reader", "second", "setter"]
    assert (began.get("MADE"), began.get("FLAG")) == ("by import", None)
    assert modules == fresh[0][2] == {"reader": "script", "second": "script"}
    assert ended["FLAG"] == "script"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "import os; os.environ['MADE'] = os.environ.get('RANK', '')",
            "sets MADE at import, which differs between the ranks",
        ),
        (
            "import os; os.environ['MADE'] = os.environ.get('PYTHONHASHSEED', 'none')",
            "sets MADE at import, to another value here than in the ranks",
        ),
        (
            "import os; 'PYTHONHASHSEED' in os.environ and os.environ.update(MADE='1')",
            "sets MADE at import, to another value here than in the ranks",
        ),
        (
            "import os; os.environ['FLAG'] += '+'",
            "changes FLAG at import, which the script has changed before",
        ),
    ],
)
def test_an_import_whose_own_changes_would_not_be_a_fresh_ranks_is_left_out(
    node: Node, text: str, reason: str
) -> None:
    node.add_package("setter", text)
    job = Scripted(node, "import reader\nos.environ['FLAG'] = 'set'\nimport setter")
    fresh = job.run_afresh()

    forked = job.fork()

    assert node.server.left_out == {"setter": reason}
    for before, after in zip(fresh, forked, strict=True):
        assert after[1] == ["reader"]
        compare(before, after)


def test_a_package_left_out_leaves_what_it_sets_to_those_imported_after_it(node: Node) -> None:
    node.add_package("setter", "import os, socket; kept = os.pipe(); os.environ['FLAG'] = 'set'")
    job = Scripted(node, "import setter, reader")
    fresh = job.run_afresh()

    forked = job.fork()

    assert list(node.server.left_out) == ["setter"]
    assert forked[0][1] == ["reader"]
    assert forked[0][2] == {"reader": "set", "second": "absent"}
    compare(fresh[0], forked[0])


def test_a_start_that_differs_from_the_ranks_forks_none(node: Node) -> None:
    text = "import os; os.environ['MADE'] = os.environ.get('RANK', '')"
    (node.packages / "sitecustomize.py").write_text(text)
    job = Scripted(node, "import reader")

    job.run_afresh()

    assert node.server.state is ServerState.GIVEN_UP
    assert node.server.why_not == (
        "MADE is changed before the script begins, and differs between the ranks"
    )


def test_the_trial_of_a_package_meets_the_scripts_variables_as_well(node: Node) -> None:
    node.add_package("setter", "import os; 'FLAG' in os.environ and os.pipe()")
    job = Scripted(node, "os.environ['FLAG'] = 'set'\nimport setter, reader")
    job.run_afresh()

    assert list(node.server.left_out) == ["setter"]
    assert "opens pipe:" in node.server.left_out["setter"]


# What a script sets otherwise than in the run from which its imports were learned.

VARYING = """
os.environ["FLAG"] = open(os.path.join(os.path.dirname(__file__), "flag")).read()
import reader
"""


@each_python
def test_a_rank_whose_script_sets_another_value_than_was_learned_starts_itself_afresh(
    node: Node, python: str
) -> None:
    (node.folder / "flag").write_text("/scratch/17")
    job = Scripted(node, VARYING, python)
    job.run_afresh()
    assert [rank[2]["reader"] for rank in job.fork()] == ["/scratch/17"] * 2

    (node.folder / "flag").write_text("/scratch/18")
    again = job.fork(attempt=3)

    assert [rank[2]["reader"] for rank in again] == ["/scratch/18"] * 2
    assert [rank[1] for rank in again] == [[], []], "nothing was imported before the script began"
    assert [rank[0]["RANKMEND_ATTEMPT"] for rank in again] == ["3"] * 2
    assert not [event for event in node.events if isinstance(event, SpawnFailed)]


def test_a_server_learns_from_ranks_that_started_themselves_afresh(node: Node) -> None:
    (node.folder / "flag").write_text("one")
    job = Scripted(node, VARYING)
    state = node.folder / "state"
    state.mkdir()
    command = RankCommand((node.python, "-u", job.script), None)
    node.server = node.make_server(kept=KeptImports(state, command, node.folder, SystemClock()))
    job.run_afresh()
    (kept,) = eventually(lambda: list(state.glob("imports/*.json")), "a list is kept")
    (node.folder / "flag").write_text("two")
    job.fork()
    first = node.server.pid

    node.server.learn_from([job.tells_to(rank) for rank in range(2)])
    node.until(lambda: node.server.state is ServerState.STARTING)
    node.begin(ServerState.READY)

    assert node.server.pid != first
    assert [rank[1:3] for rank in job.fork(attempt=3)] == [
        [["reader"], {"reader": "two", "second": "absent"}]
    ] * 2
    # The next run's ranks would wait for a server whose imports have met another value.
    eventually(lambda: "varying" in json.loads(kept.read_text()), "it is no longer kept")


NOT_AFRESH = {
    "the value it began with": "os.environ['PATH'] = os.environ['PATH']",
    "a value seen before": "os.environ['FLAG'] = 'a'; os.environ['FLAG'] = 'b'",
    "one that was set after the imports": "import reader; os.environ['LATE'] = str(os.getpid())",
    "one that was set for a while": "os.environ['X'] = str(os.getpid()); del os.environ['X']",
    "a copy": "import copy; copy.deepcopy(os.environ)['NEW' + str(os.getpid())] = '1'",
    "in a child": """
child = os.fork()
if child == 0:
    os.environ['IN_CHILD' + str(os.getpid())] = '1'
    os._exit(0)
os.waitpid(child, 0)
""",
    "after the first step": "from rankmend.hook import imports; imports.tell(); "
    "os.environ['AFTER'] = str(os.getpid())",
}


@pytest.mark.parametrize("how", NOT_AFRESH)
def test_what_no_import_can_have_met_starts_nothing_afresh(node: Node, how: str) -> None:
    job = Scripted(node, "import second\n" + NOT_AFRESH[how] + "\n")
    job.run_afresh(count=1)

    forked = job.fork(count=1)

    assert "second" in forked[0][1], "it was forked and stayed so"


def test_a_forked_rank_tells_the_packages_of_which_its_server_does_not_know(node: Node) -> None:
    job = Scripted(node, "if os.environ['RANKMEND_ATTEMPT'].lstrip('0') != '1': import second")
    job.run_afresh(count=1)

    job.fork(count=1)

    assert json.loads(job.tells_to(0).read_text()) == {"more": ["second"]}
