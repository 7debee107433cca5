"""What one run has learned of a script's imports, used by the next: the first attempt is forked, too."""

import errno
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankmend.clock import SystemClock
from recovery.launcher.guardian.packets import Exited, Spawned, SpawnFailed
from recovery.launcher.ranks import rank_imports
from recovery.launcher.ranks.command import Interpreter, RankCommand
from recovery.launcher.ranks.fork_server import GUESSES_MAX, ServerState
from recovery.launcher.ranks.rank_imports import KeptImports, TriedImports, varying
from tests.support.eventually import eventually
from tests.support.fork_bench import STDLIB, Node

pytestmark = pytest.mark.process

TRIED = TriedImports(
    {"modules": [], "expected": {}}, {"left_out": {}, "missing": {}, "stamps": {}}, 1.5
)


def command(*target: str) -> RankCommand:
    return RankCommand(("/bin/python", "-u", *target), Interpreter("/bin/python", "a test"))


def keeper(state: Path, *target: str, folder: str = "/work") -> KeptImports:
    return KeptImports(state, command(*(target or ("train.py",))), Path(folder), SystemClock())


def kept_files(state: Path) -> list[Path]:
    return sorted((state / "imports").glob("*.json"))


def test_a_list_is_found_by_interpreter_folder_and_script_and_not_by_the_arguments(
    tmp_path: Path,
) -> None:
    keeper(tmp_path, "train.py", "--lr=1").write(TRIED)
    eventually(lambda: kept_files(tmp_path), "it is kept")

    assert keeper(tmp_path, "train.py", "--lr=2").read() == TRIED
    assert keeper(tmp_path, "other.py").read() is None
    assert keeper(tmp_path, "train.py", folder="/else").read() is None
    assert keeper(tmp_path, "-m", "train.py").read() is None


def test_modules_are_told_apart(tmp_path: Path) -> None:
    keeper(tmp_path, "-m", "axolotl.cli.train", "a.yml").write(TRIED)
    eventually(lambda: kept_files(tmp_path), "it is kept")

    assert keeper(tmp_path, "-m", "axolotl.cli.train", "b.yml").read() == TRIED
    assert keeper(tmp_path, "-m", "axolotl.cli.merge", "a.yml").read() is None


BAD = [
    b"",
    b"{",
    b"[]",
    b'{"version": 1}',
    b'{"version": 0, "told": {}, "verdicts": {}, "took_s": 1}',
    b'{"version": 1, "told": 7, "verdicts": {"left_out": {}, "missing": {}, "stamps": {}}, "took_s": 1}',
    b'{"version": 1, "told": {}, "verdicts": {"left_out": 1}, "took_s": 1}',
    b'{"version": 1, "told": {}, "verdicts": {"left_out": {}, "missing": {}, "stamps": {}}, "took_s": "x"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_a_file_that_holds_no_list_counts_as_none(tmp_path: Path, body: bytes) -> None:
    kept = keeper(tmp_path)
    kept.write(TRIED)
    (path,) = eventually(lambda: kept_files(tmp_path), "it is kept")

    path.write_bytes(body)

    assert kept.read() is None


def test_an_old_list_counts_as_none(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    kept.write(TRIED)
    (path,) = eventually(lambda: kept_files(tmp_path), "it is kept")
    then_s = SystemClock().unix_s() - rank_imports.KEPT_S_MAX - 10

    os.utime(path, (then_s, then_s))

    assert kept.read() is None


def test_the_oldest_lists_make_room(tmp_path: Path) -> None:
    for number in range(3):
        script = command(f"{number}.py")
        KeptImports(tmp_path, script, Path("/work"), SystemClock(), files_max=2).write(TRIED)
        eventually(keeper(tmp_path, f"{number}.py").read, "it is kept")

    eventually(lambda: len(kept_files(tmp_path)) == 2, "two are left")
    assert keeper(tmp_path, "0.py").read() is None
    assert keeper(tmp_path, "2.py").read() == TRIED


@pytest.mark.parametrize("is_link", [True, False])
def test_a_link_to_nothing_or_a_file_in_its_folders_place_costs_only_the_list(
    tmp_path: Path, is_link: bool
) -> None:
    place = tmp_path / "imports"
    place.symlink_to(tmp_path / "missing") if is_link else place.touch()
    kept = keeper(tmp_path)

    kept.write(TRIED)
    kept.forget()

    eventually(lambda: not writers(), "they end")
    assert kept.read() is None
    assert not (tmp_path / "missing").exists()


class TwoRuns:
    """A node whose server learns, and then another server as a second run has it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.state = node.folder / "state"
        self.state.mkdir()
        self.kept = KeptImports(
            self.state,
            RankCommand((node.python, "-u", "train.py"), None),
            node.folder,
            SystemClock(),
        )
        node.server = node.make_server(kept=self.kept)

    def learn(self, modules: list[str]) -> None:
        self.node.make_ready(modules)
        eventually(lambda: kept_files(self.state), "it is kept")

    def begin_another(self, **options: Any) -> None:
        """Start the server of a second run, which imports while the launcher starts its ranks."""
        node = self.node
        node.server.close()  # the process ends as its socket does
        eventually(
            lambda: [one for one in node.guardian.read_events() if type(one) is Exited], "its end"
        )
        node.server = node.make_server(kept=self.kept, **options)
        assert node.server.state is ServerState.WAITING
        node.server.tick(node.guardian, may_start=False)
        assert node.server.state is ServerState.STARTING


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[TwoRuns]:
    node = Node(tmp_path)
    yield TwoRuns(node)
    node.close()


def test_the_first_ranks_of_a_second_run_are_forked_without_any_trial(runs: TwoRuns) -> None:
    node = runs.node
    # Each import says so: the second guess leaves out what the first one met.
    node.add_package("counted", f"open({str(node.folder / 'count')!r}, 'a').write('x')")
    node.add_package(
        "noisy",
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    )
    runs.learn([*STDLIB, "counted", "noisy"])
    left_out = node.server.left_out
    assert list(left_out) == ["noisy"]
    assert (node.folder / "count").read_text() == "xx", "by two guesses"

    runs.begin_another()
    for rank in range(2):
        script = node.script("import sys; print('counted' in sys.modules, 'noisy' in sys.modules)")
        assert node.fork(script, rank=rank), "before the server is ready"

    node.of(Exited, 2)
    assert [node.output(rank).read_text() for rank in range(2)] == ["True False\n"] * 2
    assert (node.folder / "count").read_text() == "xxx"
    assert node.server.left_out == left_out
    assert node.of(Spawned, 2)
    assert not [event for event in node.events if isinstance(event, SpawnFailed)]


OTHERWISE = {
    "another version": ("version = 'two'", "has changed since it was tried"),
    "opens a descriptor": (None, "opens"),
    "starts a thread": (None, "starts a thread"),
    "fails": (None, "fails"),
    "is another file": (None, "has another file"),
}
BY_ENVIRONMENT = """
import os, sys, threading
how = os.environ.get("HOW")
if how == "opens a descriptor":
    kept = os.open("/proc/self/stat", os.O_RDONLY)
if how == "starts a thread":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if how == "fails":
    raise RuntimeError("not today")
if how == "ends the process":
    os._exit(3)
if how == "is another file":
    __spec__.origin = "/elsewhere"
"""


@pytest.mark.parametrize("how", OTHERWISE)
def test_where_the_verdicts_hold_no_longer_the_ranks_start_afresh_and_tell_again(
    runs: TwoRuns, how: str
) -> None:
    node = runs.node
    body, reason = OTHERWISE[how]
    node.add_package("fickle", BY_ENVIRONMENT)
    runs.learn(["os", "threading", "fickle"])
    if body is not None:
        (node.packages / "fickle" / "__init__.py").write_text(body)
    node.base["HOW"] = how

    runs.begin_another()
    assert node.fork(node.script("print('ran')"))

    (failed,) = node.of(SpawnFailed)
    node.server.note_failed_fork(node.guardian, failed)
    assert reason in node.server.why_not
    assert node.server.state is ServerState.LEARNING
    eventually(lambda: not kept_files(runs.state), "it is forgotten")
    assert not node.output().read_text()


def test_an_import_that_hangs_holds_the_first_ranks_up_for_a_bounded_time(runs: TwoRuns) -> None:
    node = runs.node
    node.add_package("slow", "import os, time; time.sleep(float(os.environ.get('SLOW', 0)))")
    runs.learn(["slow"])
    (path,) = kept_files(runs.state)
    path.write_text(json.dumps({**json.loads(path.read_text()), "took_s": 0.1}))
    node.base["SLOW"] = "1000"

    runs.begin_another(known_s_min=2.0)
    assert node.fork(node.script(""))

    (failed,) = node.of(SpawnFailed)
    node.server.note_failed_fork(node.guardian, failed)
    eventually(lambda: not kept_files(runs.state), "it is forgotten")
    assert not node.fork(node.script("")), "the next ranks don't wait"


def test_a_package_that_ends_the_server_of_a_second_run_is_tried_again(runs: TwoRuns) -> None:
    node = runs.node
    node.add_package("fickle", BY_ENVIRONMENT)
    runs.learn(["json", "fickle"])
    node.base["HOW"] = "ends the process"
    runs.begin_another()
    assert node.fork(node.script("print('ran')"))

    (failed,) = node.of(SpawnFailed)
    node.server.note_failed_fork(node.guardian, failed)
    node.begin(ServerState.READY)

    assert list(node.server.left_out) == ["fickle"]
    assert not node.output().read_text()


# Its import takes as long as the file that SLOW names is there.
WAITS = """
import os, time
while os.path.exists(os.environ.get("SLOW", "")):
    time.sleep(0.01)
"""


def test_a_rank_that_is_asked_to_stop_while_it_waits_for_the_server_never_runs(
    runs: TwoRuns,
) -> None:
    node = runs.node
    node.add_package("slow", WAITS)
    runs.learn(["slow"])
    held = node.folder / "held"
    held.touch()
    node.base["SLOW"] = str(held)
    runs.begin_another()
    for rank in range(2):
        script = node.script(f"open({str(node.folder / 'ran')!r}, 'a').write('{rank}')")
        assert node.fork(script, rank=rank)

    node.guardian.signal(1, signal.SIGTERM, [0])

    (failed,) = node.of(SpawnFailed)
    assert (failed.rank, failed.errno) == (0, errno.ECANCELED)
    held.unlink()
    node.of(Exited)
    assert (node.folder / "ran").read_text() == "1"


@pytest.mark.safety
def test_a_fence_reaches_a_rank_that_waits_for_the_server(runs: TwoRuns) -> None:
    node = runs.node
    node.add_package("slow", WAITS)
    runs.learn(["slow"])
    held = node.folder / "held"
    held.touch()
    node.base["SLOW"] = str(held)
    runs.begin_another()
    assert node.fork(node.script(f"open({str(node.folder / 'ran')!r}, 'w')"), attempt=1)

    node.guardian.kill_through(1)

    node.of(SpawnFailed)
    held.unlink()
    node.begin(ServerState.READY)
    assert node.fork(node.script(""), attempt=2), "the server serves the next attempt"
    node.of(Exited)
    assert not (node.folder / "ran").exists()


BOUND = replace(
    TRIED,
    told={
        "modules": [],
        "expected": {"HF_HOME": ["/a"], "TOKENIZERS_PARALLELISM": ["false"], "X": None},
    },
)
OTHER = replace(TRIED, told={"modules": [], "expected": {"HF_HOME": ["/b"], "X": None}})
SECRETS = [
    replace(TRIED, told={"modules": [], "expected": {name: [value]}})
    for name, value in (
        ("WANDB_API_KEY", "0123456789"),
        ("AZURE_STORAGE_KEY", "0123456789"),
        ("HTTPS_PROXY", "http://ada:correct-horse@proxy.example:3128"),
    )
]


def test_a_list_with_variables_that_the_script_sets_holds_while_the_script_is_the_same(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os; os.environ['HF_HOME'] = '/a'; import transformers")
    kept = keeper(tmp_path, str(script))
    kept.write(BOUND)
    eventually(lambda: kept_files(tmp_path), "it is kept")
    assert kept.read() == BOUND

    script.write_text("import transformers")

    assert kept.read() is None


def test_no_list_is_kept_of_a_script_that_sets_a_variable_otherwise_in_each_run(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    kept = keeper(tmp_path, str(script))
    assert varying(BOUND.told, OTHER.told) == {"HF_HOME"}
    assert varying(BOUND.told, BOUND.told) == varying(BOUND.told, TRIED.told) == set()

    kept.note_varying({"HF_HOME"})
    kept.write(OTHER)
    eventually(lambda: not writers(), "it is kept")
    assert kept.read() is None
    kept.write(TRIED)  # the script no longer sets it

    eventually(lambda: kept.read() == TRIED, "it is kept")


def writers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "kept-imports"]


@pytest.mark.parametrize(
    ("tried", "target"),
    [*((secret, "train.py") for secret in SECRETS), (BOUND, "missing.py"), (BOUND, "-m")],
)
def test_no_secret_is_kept_and_no_variable_of_a_script_that_can_not_be_compared(
    tmp_path: Path, tried: TriedImports, target: str
) -> None:
    (tmp_path / "train.py").touch()
    target = target if target == "-m" else str(tmp_path / target)
    kept = keeper(tmp_path, target, "a.module")
    kept.write(TRIED)
    eventually(lambda: kept_files(tmp_path), "it is kept")

    kept.write(tried)

    eventually(lambda: not kept_files(tmp_path), "it is removed")


def test_a_server_killed_later_in_a_run_is_replaced_without_trials(runs: TwoRuns) -> None:
    node = runs.node
    node.add_package("counted", f"open({str(node.folder / 'count')!r}, 'a').write('x')")
    runs.learn(["counted"])

    os.kill(node.server.pid, signal.SIGKILL)
    node.until(lambda: node.server.state is not ServerState.READY)
    node.begin(ServerState.READY)

    assert (node.folder / "count").read_text() == "xx"


def test_where_every_guess_was_wrong_each_package_is_tried(runs: TwoRuns) -> None:
    node = runs.node
    for number in range(GUESSES_MAX + 1):
        node.add_package(f"noisy{number}", "kept = open('/dev/full', 'w')")

    runs.learn(["json", *(f"noisy{number}" for number in range(GUESSES_MAX + 1))])

    assert len(node.server.left_out) == GUESSES_MAX + 1


# A script's first run, in which the server follows the imports at its head.

FIRST = (("json", ()), ("counted", ("part",)), ("os", ("path",)))
TELLS = """
import sys, os
{change}
import late
print(os.environ.get("MADE"), "counted.part" in sys.modules)
from rankmend.hook import imports
imports.tell()
"""


def begin_first(runs: TwoRuns, **options: Any) -> None:
    node = runs.node
    node.server = node.make_server(kept=runs.kept, first=FIRST, **options)
    assert node.server.is_learning
    node.server.tick(node.guardian, may_start=False)
    assert node.server.state is ServerState.STARTING


def add_counted(node: Node, text: str = "") -> None:
    """Add a package that counts its imports and sets a variable at each."""
    node.add_package(
        "counted",
        f"import os\nopen({str(node.folder / 'count')!r}, 'a').write('x')\nos.environ['MADE'] = 'yes'\n{text}",
    )
    (node.packages / "counted" / "part.py").write_text(
        "".join(f"import counted.part_{number}\n" for number in range(12))
    )
    for number in range(12):
        (node.packages / "counted" / f"part_{number}.py").touch()
    node.add_package("late", "")
    (node.folder / "train.py").touch()


def fork_two(node: Node, change: str = "") -> list[Path]:
    told = [node.folder / f"told-{rank}" for rank in range(2)]
    for rank, path in enumerate(told):
        assert node.fork(node.script(TELLS.format(change=change)), rank=rank, tells_to=path)
    return told


def test_the_first_ranks_of_a_first_run_are_forked_and_what_they_import_is_kept(
    runs: TwoRuns,
) -> None:
    node = runs.node
    add_counted(node)

    begin_first(runs)
    told = fork_two(node, "os.environ['HF_HOME'] = '/anywhere'")
    node.of(Exited, 2)

    assert [node.output(rank).read_text() for rank in range(2)] == ["yes True\n"] * 2
    assert (node.folder / "count").read_text() == "x"
    node.server.learn_from(told)
    node.until(lambda: kept_files(runs.state))
    tried = eventually(runs.kept.read, "it can be read")
    names = [name for name, _origin in tried.told["modules"]]
    assert names.index("counted") < names.index("counted.part") < names.index("late")
    assert tried.told["by_imports"]["counted"] == ({"MADE": "yes"}, []) or tried.told["by_imports"][
        "counted"
    ] == [{"MADE": "yes"}, []]
    assert tried.told["changes"][-1][1] == {"HF_HOME": "/anywhere"}
    assert node.server.state is ServerState.READY
    assert not node.server.is_learning


def test_a_server_that_lacks_much_of_what_the_ranks_tell_gives_way_to_one_that_has_it(
    runs: TwoRuns,
) -> None:
    node = runs.node
    add_counted(node)
    for number in range(9):
        node.add_package(f"more_{number}", "")

    begin_first(runs)
    told = fork_two(node, "import " + ", ".join(f"more_{number}" for number in range(9)))
    node.of(Exited, 2)
    node.server.learn_from(told)
    node.until(lambda: kept_files(runs.state))

    assert (node.folder / "count").read_text() == "xx"
    assert node.server.state is ServerState.READY


def test_where_a_fork_would_break_the_first_imports_ranks_start_afresh_and_so_at_each_run(
    runs: TwoRuns,
) -> None:
    node = runs.node
    add_counted(node, "kept = os.open('/proc/self/stat', os.O_RDONLY)")

    begin_first(runs)
    assert node.fork(node.script("print('ran')"))

    (failed,) = node.of(SpawnFailed)
    node.server.note_failed_fork(node.guardian, failed)
    assert "counted opens" in node.server.why_not
    assert node.server.state is ServerState.LEARNING
    eventually(runs.kept.had_wrong_guess, "it is kept")
    again = node.make_server(kept=runs.kept, first=FIRST)
    assert again.state is ServerState.LEARNING


def test_a_rank_of_a_first_run_that_sets_what_is_read_late_starts_itself_afresh(
    runs: TwoRuns,
) -> None:
    node = runs.node
    add_counted(node)

    begin_first(runs)
    assert node.fork(
        node.script(
            "import os, sys\nprint('counted' in sys.modules)\nos.environ['TORCH_LOGS'] = 'x'"
        )
    )
    node.of(Exited)

    assert node.output().read_text() == "True\nFalse\n"
