"""What a script prints as it fails is what plain Python prints, in a rank that starts afresh and in one out of the fork server."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankmend.hook import layout
from tests.support.hook import ROOT, Rank, each_python

pytestmark = pytest.mark.process

FUNCTION = "def load():\n    {}['a']\n"
# name: script
SCRIPTS = {
    "an exception": f"{FUNCTION}load()\n",
    "a raise at the top": "raise ValueError('bad sample 7')\n",
    "a cause": f"{FUNCTION}try:\n    load()\nexcept KeyError as error:\n    raise ValueError('bad') from error\n",
    "a context": f"{FUNCTION}try:\n    load()\nexcept KeyError:\n    raise ValueError('bad')\n",
    "a cause that is hidden": f"{FUNCTION}try:\n    load()\nexcept KeyError:\n    raise ValueError('bad') from None\n",
    "an exception with notes": "error = ValueError('bad')\nif hasattr(error, 'add_note'): error.add_note('in shard 7')\nraise error\n",
    "an exception group": f"{FUNCTION}def part():\n    try:\n        load()\n    except KeyError as error:\n        return error\nraise ExceptionGroup('two', [part(), ValueError('x')])\n",
    "sys.exit of a text": "import sys\nsys.exit('no such split')\n",
    "sys.exit of a number": "import sys\nsys.exit(3)\n",
    "sys.exit after a failure": f"import sys\n{FUNCTION}try:\n    load()\nexcept KeyError:\n    sys.exit('gave up')\n",
    "SystemExit of an object": "raise SystemExit({'code': 4})\n",
    "KeyboardInterrupt": "def wait():\n    raise KeyboardInterrupt\nwait()\n",
    "a syntax error": "x = 1\nif x\n    pass\n",
    "an indentation error": "def f():\npass\n",
    "a syntax error in what is imported": "import bad\n",
    "a name that is not there": "print(lose)\n",
    "a module that is not there": "import nosuch\n",
    "an import that fails in the module": "import failing\n",
    "an import of a watched module that fails": "import torch.optim.optimizer\n",
    "a watched module that lacks a library": "import torch.distributed.distributed_c10d\n",
    "recursion": "import sys\nsys.setrecursionlimit(60)\ndef f():\n    f()\nf()\n",
    "an own excepthook": f"import sys, traceback\n{FUNCTION}def hook(kind, value, trace):\n    print('MINE', traceback.extract_tb(trace), kind, value, file=sys.stderr)\n    traceback.print_exception(kind, value, trace)\nsys.excepthook = hook\nload()\n",
    "a traceback that is printed, then an exit": f"import sys, traceback\n{FUNCTION}try:\n    load()\nexcept KeyError:\n    traceback.print_exc()\nsys.exit(5)\n",
    "a destructor and an exit handler that fail": f"import atexit\nclass A:\n    def __del__(self):\n        raise OSError('x')\natexit.register(lambda: 1 / 0)\na = A()\n{FUNCTION}load()\n",
    "a thread that fails": f"import threading\n{FUNCTION}t = threading.Thread(target=load); t.start(); t.join()\nraise ValueError('bad')\n",
    "sys.last_traceback": f"import atexit, sys, traceback\n{FUNCTION}atexit.register(lambda: print(len(traceback.extract_tb(sys.last_traceback)), file=sys.stderr))\nload()\n",
    "an error whose text fails": "class Odd(Exception):\n    def __str__(self):\n        raise OSError('x')\nraise Odd\n",
}  # fmt: skip
MODULES = {
    "bad.py": "def f(:\n",
    "failing.py": "import math\nmath.sqrt(-1)\n",
    "torch/__init__.py": "",
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": "def f():\n    raise OSError('libcudart.so.12: cannot open shared object file')\nf()\n",
    "torch/distributed/__init__.py": "",
    "torch/distributed/distributed_c10d.py": "raise ImportError('libc10.so')\n",
}
NEW = {"an exception group": "import sys; sys.exit(sys.version_info < (3, 11))"}


@dataclass(frozen=True)
class Ended:
    code: int
    err: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def ended(command: list[str], folder: Path, environment: dict[str, str]) -> Ended:
    done = subprocess.run(
        command,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # A rank out of the fork server stands some frames deeper in the stack.
    numbers = r"0x[0-9a-f]+|Thread-\d+|repeated \d+ more"
    return Ended(done.returncode, re.sub(numbers, "N", done.stderr))


def forked(python: str, argv: list[str]) -> list[str]:
    """Return a process that runs this script in itself, as a rank out of the fork server does."""
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from rankmend.hook import becoming; "
        f"sys.path.remove({str(ROOT)!r}); sys.path.remove(''); "
        f"becoming.load(); becoming.watch_steps(); becoming.run({[python, '-u', *argv]!r})"
    )
    return [python, "-u", "-c", code]


def check(python: str, argv: list[str], folder: Path) -> None:
    """Compare plain Python with a rank that starts afresh and with one out of the fork server."""
    environment = Rank(folder, environment={layout.ENV_AUTO: "1"}).variables()
    plain = {name: text for name, text in environment.items() if not name.startswith("RANKMEND_")}
    plain.pop("PYTHONPATH")

    expected = ended([python, "-u", *argv], folder, plain)

    assert ended([python, "-u", *argv], folder, environment) == expected
    assert ended(forked(python, argv), folder, environment) == expected
    assert expected.code != 0


@each_python
@pytest.mark.parametrize("name", SCRIPTS)
def test_stderr_and_exit_code_of_a_script_are_those_of_plain_python(
    folder: Path, python: str, name: str
) -> None:
    if name in NEW and subprocess.run([python, "-c", NEW[name]], check=False).returncode:
        pytest.skip("this Python has no exception groups")
    (folder / "train.py").write_text(SCRIPTS[name])

    check(python, ["train.py"], folder)


@pytest.mark.parametrize("name", SCRIPTS)
def test_stderr_and_exit_code_of_a_module_are_those_of_plain_python(
    folder: Path, name: str
) -> None:
    if name in NEW and sys.version_info < (3, 11):
        pytest.skip("this Python has no exception groups")
    (folder / "train.py").write_text(SCRIPTS[name])

    check(sys.executable, ["-m", "train"], folder)


def test_measured_call_leaves_no_frame_in_the_middle(folder: Path) -> None:
    """The wrapper has the form of those of `rankmend.hook.torch_sections`."""
    (folder / "train.py").write_text(
        "import sys\n"
        "from rankmend.hook import torch_sections\n"
        "class A:\n    def all_reduce(self):\n        raise RuntimeError('peer')\n"
        "a = A()\n"
        "def train():\n    try:\n        a.all_reduce()\n    except RuntimeError as error:\n        raise OSError('x') from error\n"
        "A.all_reduce = torch_sections._make_timed(A.all_reduce, 1)\n"
        "train()\n"
    )
    rank = Rank(folder, environment={layout.ENV_AUTO: "1"})

    done = ended([sys.executable, "train.py"], folder, rank.variables())

    assert "in all_reduce" in done.err
    assert "in train" in done.err
    assert "rankmend" not in done.err


def test_each_call_that_is_passed_on_says_so_in_its_line() -> None:
    calls = re.compile(r"^(?!\s*def ).*\w\((\w+, )*\*(arguments|others), \*\*named\)", re.MULTILINE)
    lines = [
        line
        for path in (ROOT / "rankmend" / "hook").rglob("*.py")
        for line in path.read_text().splitlines()
        if calls.match(line)
    ]

    assert len(lines) > 10
    assert [line for line in lines if not line.endswith("# rankmend passes this on")] == []
