"""The folder on the ranks' PYTHONPATH: what runs there, and what it leaves as it was."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rankmend.hook import layout
from tests.support.hook import Rank, each_python

pytestmark = pytest.mark.process

SHOW = "import sys; m = sys.modules.get('sitecustomize'); print(m and m.__file__)"


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path, environment={layout.ENV_AUTO: "1"})


def _add_user_folder(rank: Rank, text: str, name: str = "user") -> Path:
    """Put a folder with this sitecustomize behind the launcher's, and return the file."""
    folder = rank.folder / name
    folder.mkdir()
    file = folder / "sitecustomize.py"
    file.write_text(text)
    earlier = rank.environment.get("PYTHONPATH", str(rank.site))
    rank.environment["PYTHONPATH"] = f"{earlier}:{folder}"
    return file


@each_python
def test_users_own_sitecustomize_runs_once_and_is_the_module(rank: Rank, python: str) -> None:
    file = _add_user_folder(rank, "print('mine', __name__)")

    assert rank.run(python, SHOW) == f"mine sitecustomize\n{file}\n"


@each_python
def test_without_one_of_the_users_ours_stays_in_place_silently(rank: Rank, python: str) -> None:
    done = rank.run_command(rank.command(python, SHOW))

    assert done.stdout == f"{rank.site}/sitecustomize.py\n"
    assert done.stderr == ""


@each_python
def test_package_named_sitecustomize_runs_and_a_mere_folder_does_not(
    rank: Rank, python: str
) -> None:
    mere = rank.folder / "mere" / "sitecustomize"
    mere.mkdir(parents=True)
    package = rank.folder / "real" / "sitecustomize"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .part import word; print(word)")
    (package / "part.py").write_text("word = 'part'")
    rank.environment["PYTHONPATH"] = f"{rank.site}:{mere.parent}:{package.parent}"

    assert rank.run(python, "pass") == "part\n"


@each_python
def test_users_sitecustomize_that_raises_is_reported_as_python_reports_it(
    rank: Rank, python: str
) -> None:
    _add_user_folder(rank, "raise RuntimeError('broken here')")
    with_ours = rank.run_command(rank.command(python, SHOW))
    rank.environment["PYTHONPATH"] = str(rank.folder / "user")
    without = rank.run_command(rank.command(python, SHOW))

    assert "RuntimeError: broken here" in with_ours.stderr
    assert (with_ours.stdout, with_ours.stderr) == (without.stdout, without.stderr)


@each_python
def test_users_sitecustomize_may_end_the_interpreter(rank: Rank, python: str) -> None:
    _add_user_folder(rank, "import os; os.write(1, b'leaving'); os._exit(0)")

    assert rank.run(python, "print('not reached')") == "leaving"


CHAIN = """\
# As New Relic's: finds the next one on a path without its own folder.
import os, sys
from importlib import util
from importlib.machinery import PathFinder
print("chained")
here = os.path.dirname(__file__)
spec = PathFinder.find_spec("sitecustomize", [f for f in sys.path if f != here])
module = util.module_from_spec(spec)
spec.loader.exec_module(module)
"""
REIMPORT = """\
# As Datadog's: takes its folder off the path and imports the next one by name.
import os, sys
print("imported again")
here = os.path.dirname(__file__)
ours = sys.modules.pop("sitecustomize")
sys.path.remove(here)
import sitecustomize
sys.path.insert(0, here)
"""


@each_python
@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize(("text", "word"), [(CHAIN, "chained"), (REIMPORT, "imported again")])
def test_others_that_chain_sitecustomize_end_with_the_users_once(
    rank: Rank, python: str, text: str, word: str, ours_first: bool
) -> None:
    other = _add_user_folder(rank, text, "other").parent
    mine = _add_user_folder(rank, "print('mine')").parent
    first = [rank.site, other] if ours_first else [other, rank.site]
    rank.environment["PYTHONPATH"] = ":".join(map(str, [*first, mine]))

    assert rank.run(python, "print('ran')").splitlines() == [word, "mine", "ran"]


def test_sitecustomize_of_the_distribution_still_runs(rank: Rank) -> None:
    command = ["/usr/bin/python3", "-c", SHOW]
    if not Path(command[0]).exists():
        pytest.skip("no /usr/bin/python3")
    plain = subprocess.run(command, capture_output=True, text=True, check=True, env={}).stdout
    if plain == "None\n":
        pytest.skip("this distribution's Python has no sitecustomize")

    assert rank.run_command(command).stdout == plain


LIST_OURS = """\
import sys
print([name for name in sys.modules if name.split(".")[0] == "rankmend"])
print([type(finder).__module__ for finder in sys.meta_path if "rankmend.hook" in str(finder)])
print("sitecustomize" in sys.modules and sys.modules["sitecustomize"].__file__)
"""


@each_python
def test_torch_is_awaited_in_an_ordinary_interpreter(rank: Rank, python: str) -> None:
    assert "rankmend.hook.torch_steps" in rank.run(python, LIST_OURS)


@each_python
@pytest.mark.parametrize("flag", ["-S", "-I", "-E", "-Es"])
def test_isolated_interpreter_sees_nothing_of_ours(rank: Rank, python: str, flag: str) -> None:
    told = rank.run(python, LIST_OURS, flag).splitlines()

    assert told[:2] == ["[]", "[]"]
    assert str(rank.site) not in told[2]


@each_python
def test_switched_off_or_unlaunched_process_loads_nothing_of_ours(rank: Rank, python: str) -> None:
    rank.environment[layout.ENV_AUTO] = "0"
    off = rank.run(python, LIST_OURS)
    rank.environment = {layout.ENV_AUTO: "1", layout.ENV_PROGRESS_FILE: ""}
    unlaunched = rank.run(python, LIST_OURS)

    assert off.splitlines()[:2] == unlaunched.splitlines()[:2] == ["[]", "[]"]


def test_commands_that_are_no_python_run_as_ever(rank: Rank) -> None:
    done = rank.run_command(["/bin/sh", "-c", "echo shell"])

    assert (done.stdout, done.stderr) == ("shell\n", "")
    assert rank.read().pid == 0


def _old_python(version: str) -> str:
    builds = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    path = str(builds[-1]) if builds else shutil.which(f"python{version}")
    if path is None:
        pytest.skip(f"no Python {version}")
    return path


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_python_too_old_for_the_hook_runs_undisturbed_and_the_users_own_too(
    rank: Rank, version: str
) -> None:
    python = _old_python(version)
    _add_user_folder(rank, "import sys; sys.stdout.write('mine\\n')")

    done = rank.run_command(
        rank.command(
            python, "import sys; sys.stdout.write(str([m for m in sys.modules if 'rankm' in m]))"
        )
    )

    assert (done.stdout, done.stderr) == ("mine\n[]", "")


@each_python
def test_broken_install_of_ours_is_silent(rank: Rank, python: str) -> None:
    (rank.site / "rankmend").unlink()
    (rank.site / "rankmend").symlink_to(rank.folder / "gone")
    _add_user_folder(rank, "print('mine')")

    done = rank.run_command(rank.command(python, "print('ran')"))

    assert (done.stdout, done.stderr) == ("mine\nran\n", "")
