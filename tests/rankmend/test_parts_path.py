"""Where a program of rankmend finds its own parts, whatever else is called `agent` there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankmend import parts_path

pytestmark = pytest.mark.process

SOURCE = Path(parts_path.__file__)
TELL = "def main(arguments):\n    import sys\n    print(__file__, arguments, sys.path, sep='\\n')\n"


def program_of(folder: Path, *, in_wheel: bool) -> Path:
    """Make a package as a wheel or a checkout has it, with an `agent` that tells where it is."""
    package = folder / "lib" / "rankmend"
    parts = package / "parts" if in_wheel else package.parent
    (parts / "agent").mkdir(parents=True)
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "logs.py").write_text("raise SystemExit('the package is no folder of modules')\n")
    (parts / "agent" / "__init__.py").touch()
    (parts / "agent" / "child.py").write_text(TELL)
    shutil.copy(SOURCE, package / "parts_path.py")
    return package / "parts_path.py"


def run(file: Path, *options: str, cwd: Path, path: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, *options, str(file), "agent.child", "1", "two"],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("in_wheel", [True, False], ids=["wheel", "checkout"])
@pytest.mark.parametrize("options", [(), ("-I",), ("-I", "-S")], ids=" ".join)
def test_program_finds_its_own_parts_before_others_of_the_name(
    tmp_path: Path, in_wheel: bool, options: tuple[str, ...]
) -> None:
    file = program_of(tmp_path, in_wheel=in_wheel)
    users = tmp_path / "users"
    (users / "agent").mkdir(parents=True)
    (users / "agent" / "__init__.py").write_text("raise SystemExit('the wrong agent')\n")

    where, arguments, found = run(file, *options, cwd=users, path=str(users))

    assert Path(where).is_relative_to(tmp_path / "lib")
    assert arguments == "['1', 'two']"
    assert repr(str(file.parent)) not in found  # else `import logs` would find rankmend's
    assert repr(str(tmp_path / "lib")) in found


def test_folder_is_put_on_the_path_once_and_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/users", parts_path.PACKAGE_ROOT])

    parts_path.put_on_path()
    parts_path.put_on_path()

    assert sys.path == [parts_path.PARTS_ROOT, "/users", parts_path.PACKAGE_ROOT]


def test_exit_code_is_what_the_program_returns(tmp_path: Path) -> None:
    file = program_of(tmp_path, in_wheel=True)
    child = file.parent / "parts" / "agent" / "child.py"
    child.write_text("def main(arguments):\n    return 7\n")

    done = subprocess.run([sys.executable, str(file), "agent.child"], check=False)

    assert done.returncode == 7
