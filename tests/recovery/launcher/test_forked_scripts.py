"""Scripts as people have them: a forked rank prints and ends as a fresh one does."""

import compileall
import os
import signal
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.launcher.guardian.packets import Exited
from tests.support.fork_bench import STDLIB, Node

pytestmark = pytest.mark.process

IMPORTED = [*STDLIB, "multiprocessing.pool", "subprocess", "inspect", "pickle", "tempfile"]
IMPORTED += ["threading", "signal", "warnings", "traceback", "logging", "asyncio", "runpy"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")  # in which the launcher, and so its server, runs
    made = Node(tmp_path)
    made.base["PYTHONHASHSEED"] = "0"
    yield made
    made.close()


Told = tuple[str, int | None, int | None]


def run(node: Node, *argv: str, attempt: int, stdin: bytes = b"") -> Told:
    """Run a rank in the project, forked if that is possible, and return what came of it."""
    read_end, write_end = os.pipe()
    os.write(write_end, stdin)
    os.close(write_end)
    before = len([event for event in node.events if isinstance(event, Exited)])
    spawn = replace(node.spawn(*argv, attempt=attempt), cwd=str(Path.cwd()), stdin_fd=read_end)
    try:
        if not node.server.fork(node.guardian, spawn):
            node.guardian.spawn(spawn)
    finally:
        os.close(spawn.stdout_fd)
        os.close(read_end)
    exited = node.of(Exited, before + 1)[-1]
    return node.output().read_text(errors="backslashreplace"), exited.exit_code, exited.signal


def compare(node: Node, *argv: str, stdin: bytes = b"") -> Told:
    fresh = run(node, *argv, attempt=1, stdin=stdin)
    node.make_ready(IMPORTED)
    forked = run(node, *argv, attempt=2, stdin=stdin)
    assert node.server.left_out == {}
    assert forked == fresh
    return forked


SCRIPTS = {
    "relative path and chdir": """
        import os, sys
        os.chdir("/")
        print(sys.argv, sys.path[0], __file__ if sys.version_info >= (3, 9) else "")
        import helper
        print(helper.__file__)
        """,
    "spawned workers": """
        import multiprocessing
        def double(n):
            return 2 * n
        print("imported as", __name__, flush=True)
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]), multiprocessing.current_process().name)
        """,
    "forked workers": """
        import multiprocessing, random
        def tell(queue):
            queue.put(multiprocessing.current_process().name)
        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            for _ in range(2):
                worker = context.Process(target=tell, args=(queue,))
                worker.start()
                print(queue.get())
                worker.join()
                print(worker.exitcode)
        """,
    "forks while it is imported": """
        import os, sys
        pid = os.fork()
        print("child" if pid == 0 else os.waitpid(pid, 0)[1])
        """,
    "signal handlers": """
        import os, signal, sys
        def end(number, frame):
            print("asked to end by", number, frame.f_code.co_name)
            sys.exit(7)
        signal.signal(signal.SIGTERM, end)
        os.kill(os.getpid(), signal.SIGTERM)
        """,
    "atexit and a text for sys.exit": """
        import atexit, sys, threading, time
        atexit.register(print, "last")
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
        sys.exit("no data")
        """,
    "an error": """
        import helper
        def train():
            helper.fail()
        train()
        """,
    "a syntax error": "def train(:\n    pass\n",
    "its own source and pickles": """
        import inspect, pickle, sys
        class Batch:
            size = 3
        def train():
            return Batch
        print(inspect.getsource(train), pickle.loads(pickle.dumps(Batch())).size)
        print(sorted(name for name in globals() if name != "__annotations__"))
        """,
    "interrupted": """
        import os, signal
        os.kill(os.getpid(), signal.SIGINT)
        """,
    "an event loop, a warning and a log": """
        import asyncio, logging, warnings
        async def main():
            await asyncio.sleep(0)
            warnings.warn("old")
            logging.warning("%s", __name__)
        asyncio.run(main())
        """,
    "environment": """
        import os
        print(sorted(item for item in os.environ.items() if item[0] != "RANKMEND_ATTEMPT"))
        """,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_forked_as_it_runs_afresh(node: Node, name: str) -> None:
    lines = SCRIPTS[name].splitlines()
    Path("train.py").write_text("\n".join(line.removeprefix(" " * 8) for line in lines))
    Path("helper.py").write_text("def fail():\n    raise ValueError('the loss is nan')\n")

    compare(node, "train.py", "--lr", "0.1")


@pytest.mark.parametrize(
    "environment",
    [
        {"LANG": "C"},
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LANG": "C.UTF-8", "PYTHONIOENCODING": "latin-1:replace"},
        {"LANG": "C.UTF-8", "PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"},
        {"LANG": "C.UTF-8", "PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": "1"},
    ],
    ids=str,
)
def test_text_and_python_s_own_variables_are_as_afresh(
    node: Node, environment: dict[str, str]
) -> None:
    node.base.update(environment)
    Path("train.py").write_text(
        "import locale, sys\n"
        "print(sys.stdout.encoding, sys.stdout.errors, sys.getfilesystemencoding(), sys.path)\n"
        "print(sys.flags, sys.warnoptions, locale.setlocale(locale.LC_CTYPE), __doc__)\n"
        "print(ascii(sys.argv), sys.orig_argv if sys.version_info >= (3, 10) else '')\n"
        "print('Verlust \\u2192 0,5 \\xb5', flush=True)\n"
    )

    compare(node, "train.py", "gr\xf6\xdfe")


def test_a_module_of_a_package_runs_as_main(node: Node) -> None:
    package = Path("models")
    package.mkdir()
    (package / "__init__.py").write_text("import sys; print(__name__, sys.argv)")
    (package / "train.py").write_text(
        "import sys\n"
        "print(__name__, __package__, __spec__.name, sys.argv, sys.path[0])\n"
        "print(sorted(name for name in globals() if name != '__annotations__'))\n"
        "from . import __name__ as own; print(own)\n"
    )

    text, code, _signal = compare(node, "-m", "models.train", "--lr", "0.1")

    assert "__main__ models models.train" in text
    assert code == 0


def test_a_script_reads_standard_input(node: Node) -> None:
    Path("train.py").write_text("import sys; print(input(), sys.stdin.read())")

    text, _code, _signal = compare(node, "train.py", stdin=b"first\nsecond")

    assert text == "first second\n"


def test_relative_and_empty_entries_of_pythonpath_mean_the_ranks_folder(node: Node) -> None:
    node.base["PYTHONPATH"] = ""
    node.packages = Path("lib:")  # as in PYTHONPATH=lib:$PYTHONPATH
    Path("lib").mkdir()
    Path("lib/in_lib.py").write_text("")
    Path("in_folder.py").write_text("")
    Path("scripts").mkdir()
    Path("scripts/train.py").write_text(
        "import in_lib, in_folder, sys; print(sys.path, in_lib.__file__, in_folder.__file__)"
    )
    node.base["PYTHONPATH"] = "lib:"

    _text, code, _signal = compare(node, "scripts/train.py")

    assert code == 0


def test_modules_beside_the_launcher_do_not_stand_in_for_python_s_own(node: Node) -> None:
    Path("json.py").write_text("raise SystemExit('the user has a module of this name')")
    Path("scripts").mkdir()
    Path("scripts/train.py").write_text("import json; print(json.dumps([1]))")

    text, _code, _signal = compare(node, "scripts/train.py")

    assert text == "[1]\n"


@pytest.mark.parametrize("kind", ["archive", "compiled", "gone", "folder"])
def test_what_python_takes_for_a_script(node: Node, kind: str) -> None:
    text = "import sys; print(__name__, sys.argv, sys.path[0], __file__)"
    script = Path("train.pyz")
    if kind == "archive":
        with zipfile.ZipFile(script, "w") as archive:
            archive.writestr("__main__.py", text)
    elif kind == "compiled":
        script = Path("train.pyc")
        Path("train.py").write_text(text)
        compileall.compile_file("train.py", legacy=True, quiet=1)
    elif kind == "folder":
        script.mkdir()
        (script / "__main__.py").write_text(text)

    _text, code, _signal = compare(node, str(script), "a")

    assert code == (2 if kind == "gone" else 0)


def test_a_script_and_a_module_edited_between_attempts_run_as_they_are_now(node: Node) -> None:
    Path("train.py").write_text("import helper; print(1, helper.rate)")
    Path("helper.py").write_text("rate = 0.1")
    assert compare(node, "train.py")[0] == "1 0.1\n"

    Path("train.py").write_text("import helper, added; print(2, helper.rate, added.more)")
    Path("helper.py").write_text("rate = 0.01  # smaller")
    Path("added.py").write_text("more = True")

    assert run(node, "train.py", attempt=3)[0] == "2 0.01 True\n"


def test_an_interrupt_ends_a_forked_rank_by_its_signal(node: Node) -> None:
    Path("train.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")

    _text, code, signum = compare(node, "train.py")

    assert (code, signum) == (None, signal.SIGINT)
