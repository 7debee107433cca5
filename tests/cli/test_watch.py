"""`rankmend watch env` prints lines that work as they stand, and makes the folder that they name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankmend.cli import cli
from rankmend.watch.hook_folder import VERSION_FILE
from tests.support.hook import each_python

pytestmark = pytest.mark.process


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


@pytest.mark.parametrize("place", ["shell", "taskprolog", "container", "pod"])
def test_what_is_wanted_beside_the_steps_is_in_the_lines_of_each_place(
    folder: Path, place: str
) -> None:
    plain = env(folder, "--for", place).stdout
    more = env(folder, "--for", place, "--any", "--evidence").stdout

    for name in ("RANKMEND_WATCH_ANY", "RANKMEND_WATCH_EVIDENCE"):
        assert (name in plain, name in more) == (False, True)


def run_prolog(text: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    prolog = folder.parent / "prolog.sh"
    prolog.write_text(text)
    prolog.chmod(0o755)
    return subprocess.run(
        [prolog],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "user", "partition", "is_watched"),
    [
        (("--users", "ada,bob"), "ada", "gpu", True),
        (("--users", "ada,bob"), "bob", "gpu", True),
        (("--users", "ada,bob"), "ad", "gpu", False),
        (("--users", "ada,bob"), "", "", False),
        (("--partitions", "debug"), "ada", "debug", True),
        (("--partitions", "debug"), "ada", "gpu", False),
        (("--users", "ada", "--partitions", "debug"), "eve", "debug", True),
        (("--users", "ada", "--partitions", "debug"), "ada", "gpu", True),
        (("--users", "ada", "--partitions", "debug"), "eve", "gpu", False),
    ],
)
def test_canary_reaches_only_jobs_of_these_users_or_partitions(
    folder: Path, options: tuple[str, ...], user: str, partition: str, is_watched: bool
) -> None:
    text = env(folder, "--for", "taskprolog", *options).stdout

    done = run_prolog(text, folder, SLURM_JOB_USER=user, SLURM_JOB_PARTITION=partition)

    assert (done.returncode, done.stderr) == (0, "")
    assert ("export RANKMEND_WATCH=1" in done.stdout) == is_watched
    assert bool(done.stdout) == is_watched


@pytest.mark.parametrize("name", ["", "a,,b", "*", "a b", "$(id)", "a;id", "-x", "a|b", "a)"])
def test_name_that_a_shell_would_read_otherwise_is_refused(folder: Path, name: str) -> None:
    told = env(folder, "--for", "taskprolog", f"--users={name}")

    assert told.exit_code == 1
    assert "not the name of a user: " in told.stderr
    assert not folder.exists()


def test_canary_is_for_a_task_prolog_alone(folder: Path) -> None:
    told = env(folder, "--users", "ada")

    assert told.exit_code == 1
    assert "--users is for --for taskprolog" in told.stderr


def test_task_prolog_whose_folder_is_gone_prints_nothing_and_fails_no_job(folder: Path) -> None:
    text = env(folder, "--for", "taskprolog").stdout
    shutil.rmtree(folder)

    done = run_prolog(text, folder)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_task_prolog_honours_the_switch(folder: Path, tmp_path: Path) -> None:
    prolog = tmp_path / "prolog.sh"
    prolog.write_text(env(folder, "--for", "taskprolog").stdout)
    (tmp_path / "etc" / "rankmend").mkdir(parents=True)
    (tmp_path / "etc" / "rankmend" / "watch-off").touch()

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"mount --bind {tmp_path}/etc /etc && sh {prolog}"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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


def test_folder_of_an_earlier_version_is_brought_up_to_date(folder: Path) -> None:
    """Which had a file in the place of the folder for compiled code, and no code for any Python."""
    env(folder)
    compiled = folder / "__pycache__" / f"sitecustomize.{sys.implementation.cache_tag}.pyc"
    code = compiled.read_bytes()
    shutil.rmtree(compiled.parent)
    compiled.parent.touch()

    env(folder)

    assert compiled.read_bytes() == code


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("shell", "\nexport RANKMEND_WATCH_EVIDENCE=1\n"),
        ("taskprolog", "\necho export RANKMEND_WATCH_EVIDENCE=1\n"),
        ("container", " --env=RANKMEND_WATCH_EVIDENCE=1\n"),
        ("pod", '\n  - {name: RANKMEND_WATCH_EVIDENCE, value: "1"}\n'),
    ],
)
def test_evidence_is_asked_for_in_each_place_only_by_the_option(
    folder: Path, place: str, line: str
) -> None:
    assert line in env(folder, "--for", place, "--evidence").stdout
    assert "EVIDENCE" not in env(folder, "--for", place).stdout


@each_python
def test_folder_has_code_for_another_python_that_was_named(folder: Path, python: str) -> None:
    done = env(folder, "--python", python)

    assert done.exit_code == 0, done.stderr
    tag = "import sys; print(sys.implementation.cache_tag)"
    named = subprocess.check_output([python, "-c", tag], text=True).strip()
    for name in ("sitecustomize.py", "lib-rankmend/current/rankmend/hook/awaiting.py"):
        path = folder / name
        assert (path.parent / "__pycache__" / f"{path.stem}.{named}.pyc").is_file()


def test_python_that_is_none_is_named(folder: Path) -> None:
    told = env(folder, "--python", "/bin/false")

    assert told.exit_code == 1
    assert "cannot compile the hook for /bin/false: 1; it must be 3.8 or later" in told.stderr


def test_compiled_code_of_another_source_is_not_run(folder: Path) -> None:
    env(folder)
    (folder / "sitecustomize.py").write_text("print('changed')\n")

    done = subprocess.run(
        [sys.executable, "-c", ""],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "changed\n"


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
