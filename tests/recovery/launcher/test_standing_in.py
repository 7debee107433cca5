"""Standbys stand in for a fork server where a fork would break most of what the ranks import."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT, Exited
from recovery.launcher.ranks.fork_server import GUESSES_MAX, ServerState
from recovery.launcher.ranks.standbys import StandbyPool
from recovery.launcher.ranks.waiting_processes import WaitingProcesses
from recovery.messages.exchange import RankStart, StartKind
from tests.support.fork_bench import Node

pytestmark = pytest.mark.process
THREAD = "import threading as t; t.Thread(target=t.Event().wait, daemon=True, name='beat').start()"
FOREIGN_THREAD = "import _thread, time; _thread.start_new_thread(time.sleep, (600,))"
DEVICE = "import os; kept = os.open('/dev/full', os.O_RDWR)"
# Trials are niced; these tests may be too.
NOT_IN_A_TRIAL = f"import os\nif os.nice(0) == {os.nice(0)}: " + FOREIGN_THREAD
SAYS = "import sys, {0}; print({0}.__name__, sys.modules[{0!r}].version, '{0}' in before)"
BEFORE = "import sys; before = set(sys.modules)\n"


class StandingIn(Node):
    """A node that has a fork server, and standbys in its place."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pool = StandbyPool(
            self.python,
            None,
            2,
            self.job_id,
            self.base,
            self.runtime.path,
            self.runtime.site,
            SystemClock(),
        )
        self.waiting = WaitingProcesses(self.pool, self.server)

    def turn(self) -> None:
        for event in self.guardian.read_events():
            if getattr(event, "attempt", None) == STANDBY_ATTEMPT:
                self.waiting.take_event(event)
            else:
                self.events.append(event)
        self.waiting.tick(self.guardian, may_start=True)

    def stand_by(self) -> None:
        self.until(lambda: self.pool.ready == 2)

    def start(self, script: str) -> RankStart:
        spawn = self.spawn(self.script(script))
        try:
            return self.waiting.start(self.guardian, spawn, None)
        finally:
            os.close(spawn.stdout_fd)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StandingIn]:
    made = StandingIn(tmp_path)
    yield made
    made.waiting.close()
    made.close()


@pytest.mark.parametrize("guesses", [0, GUESSES_MAX])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (THREAD, "a fork would break broken, which starts a thread at import (beat)"),
        (FOREIGN_THREAD, "a fork would break broken, which starts a thread at import that"),
        ("import socket; kept = socket.socket()", "a fork would break broken, which opens socket:"),
    ],
)
def test_ranks_are_made_of_standbys_that_have_imported_it(
    node: StandingIn, text: str, reason: str, guesses: int
) -> None:
    node.server = node.make_server(guesses=guesses)
    node.waiting = WaitingProcesses(node.pool, node.server)
    node.add_package("broken", text + "\nversion = 1")
    node.learn(["json", "broken"])

    node.stand_by()
    started = node.start(BEFORE + SAYS.format("broken"))

    assert node.server.state is ServerState.GIVEN_UP
    assert started.kind is StartKind.STANDBY
    assert started.why_not_forked.startswith(reason)
    (exited,) = node.of(Exited)
    assert exited.exit_code == 0
    assert node.output().read_text() == "broken 1 True\n"


def test_so_are_they_where_only_all_imports_together_run_a_thread(node: StandingIn) -> None:
    node.server = node.make_server(guesses=0)
    node.waiting = WaitingProcesses(node.pool, node.server)
    node.add_package("broken", NOT_IN_A_TRIAL)
    node.add_package("whole", "version = 1")
    node.learn(["broken", "whole", "json"])

    node.stand_by()
    started = node.start(BEFORE + SAYS.format("whole"))

    assert started.why_not_forked.startswith("one of the imports starts a thread at import")
    node.of(Exited)
    assert node.output().read_text() == "whole 1 True\n"


@pytest.mark.parametrize("text", [DEVICE, "import os; is_first = 'RANK' in os.environ"])
def test_what_a_process_of_its_own_may_not_import_ahead_either_is_left_out_of_a_fork_server(
    node: StandingIn, text: str
) -> None:
    node.add_package("broken", text)
    node.learn(["json", "broken"])

    node.begin(ServerState.READY)

    assert list(node.server.left_out) == ["broken"]
    assert node.server.standby_list is None
    assert node.pool.ready == 0


def test_a_package_that_changes_while_they_stand_by_is_imported_afresh(node: StandingIn) -> None:
    node.add_package("broken", THREAD + "\nversion = 1")
    node.learn(["broken"])
    node.stand_by()
    (node.packages / "broken" / "__init__.py").write_text(THREAD + "\nversion = 'the second'")

    node.start(BEFORE + SAYS.format("broken"))

    node.of(Exited)
    assert node.output().read_text() == "broken the second False\n"


def test_a_variable_that_the_script_sets_otherwise_starts_the_rank_afresh(node: StandingIn) -> None:
    node.add_package("broken", THREAD + "\nversion = 1")
    node.learn(["broken"])
    node.stand_by()

    node.start(BEFORE + "import os; os.environ['HOME_OF'] = 'x'\n" + SAYS.format("broken"))

    node.of(Exited)
    assert node.output().read_text() == "broken 1 False\n"


def test_a_package_that_a_fork_would_break_is_left_out_where_it_is_the_lesser_part(
    node: StandingIn,
) -> None:
    node.add_package("broken", THREAD)
    node.add_package("whole", "")
    node.learn(["broken", "whole"])

    node.begin(ServerState.READY)

    assert list(node.server.left_out) == ["broken"]
    assert node.pool.ready == 0
