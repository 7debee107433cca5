"""`rankmend watch env` prints lines that work as they stand, and makes the folder that they name."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankmend.cli import cli
from rankmend.watch.hook_folder import VERSION_FILE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "the hook"


def env(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["watch", "env", "--folder", str(folder), *options])


@pytest.mark.parametrize(("before", "after"), [("", ""), ("/a:/b", ":/a:/b")])
def test_shell_that_evaluates_the_lines_has_both_variables(
    folder: Path, before: str, after: str
) -> None:
    lines = env(folder).stdout

    told = subprocess.check_output(
        ["sh", "-c", 'eval "$0"; echo "$PYTHONPATH $RANKMEND_WATCH"', lines],
        env={"PYTHONPATH": before, "PATH": "/usr/bin:/bin"},
        text=True,
    )

    assert told == f"{folder}{after} 1\n"


@pytest.mark.parametrize(("before", "after"), [("", ""), ("/a:/b", ":/a:/b")])
def test_task_prolog_prints_what_slurm_takes_over(
    folder: Path, tmp_path: Path, before: str, after: str
) -> None:
    prolog = tmp_path / "prolog.sh"
    prolog.write_text(env(folder, "--for", "taskprolog").stdout)
    prolog.chmod(0o755)

    told = subprocess.check_output(
        [prolog], env={"PYTHONPATH": before, "PATH": "/usr/bin:/bin"}, text=True
    )

    assert told == f"export PYTHONPATH={folder}{after}\nexport RANKMEND_WATCH=1\n"


def test_lines_for_a_pod_name_the_folder_and_shared_memory(folder: Path) -> None:
    lines = env(folder, "--for", "pod").stdout.splitlines()

    assert f"  - {{name: PYTHONPATH, value: {folder}}}" in lines
    assert f"  - {{name: rankmend-hook, mountPath: {folder}, readOnly: true}}" in lines
    assert sum("/dev/shm" in line for line in lines) == 2


def test_options_of_a_container_mount_the_folder(folder: Path) -> None:
    told = env(folder, "--for", "container").stdout

    assert f"{folder}:ro" in told.replace("'", "")
    assert "--env=RANKMEND_WATCH=1" in told


def test_folder_holds_the_hook_alone_and_every_user_reads_it(folder: Path) -> None:
    assert env(folder).exit_code == 0

    package = folder / "lib-rankmend" / "current" / "rankmend"
    assert (folder / "sitecustomize.py").is_file()
    assert {path.name for path in package.iterdir()} == {"__init__.py", "__pycache__", "hook"}
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


def test_folder_is_brought_up_to_date_and_left_alone_where_it_is(folder: Path) -> None:
    env(folder)
    layout = folder / "lib-rankmend/current/rankmend/hook/layout.py"
    before = layout.stat().st_ino
    env(folder)
    assert layout.stat().st_ino == before

    text = layout.read_text()
    layout.write_text("VERSION = 0\n")
    (folder / "lib-rankmend/current/rankmend/hook/gone.py").touch()
    env(folder)

    assert layout.read_text() == text
    assert not layout.with_name("gone.py").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_folder_of_somebody_else_is_never_replaced(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("ten years")

    told = env(folder)

    assert told.exit_code == 1
    assert f"{folder} is not empty, and no hook folder of rankmend" in told.stderr
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    told = env(tmp_path / "file" / "hook")

    assert told.exit_code == 1
    assert f"cannot make the hook folder {tmp_path}/file/hook: " in told.stderr
    assert not (tmp_path / "file" / VERSION_FILE).exists()
