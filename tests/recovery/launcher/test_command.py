from pathlib import Path

import pytest

from rankmend.errors import LaunchError
from recovery.launcher.ranks.command import (
    Interpreter,
    RankCommand,
    build_command,
    choose_interpreter,
    fill,
    may_use_torch,
    takes_checkpoint,
)
from recovery.messages.exchange import Restore

OWN = "/opt/env/bin/python"


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_ranks_run_under_the_interpreter_of_rankmend_as_with_torchrun(tmp_path: Path) -> None:
    chosen = choose_interpreter(None, {"PATH": "/usr/bin"}, OWN, tmp_path)

    assert chosen.path == OWN


def test_a_named_interpreter_wins(tmp_path: Path) -> None:
    python = make_program(tmp_path / "bin" / "python9")

    chosen = choose_interpreter(str(python), {"PYTHON_EXEC": "other"}, OWN, tmp_path)

    assert chosen == Interpreter(str(python), "--python")


def test_a_named_interpreter_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="'/no/python'"):
        choose_interpreter("/no/python", {}, OWN, tmp_path)


@pytest.mark.parametrize("marker", ["pipx_metadata.json", "uv-receipt.toml", "rankmend-tool"])
def test_an_environment_made_for_rankmend_alone_is_never_the_users(
    tmp_path: Path, marker: str
) -> None:
    (tmp_path / marker).touch()
    active = make_program(tmp_path / "active" / "bin" / "python").parent.parent
    on_path = make_program(tmp_path / "path" / "python3")

    with_active = choose_interpreter(None, {"VIRTUAL_ENV": str(active)}, OWN, tmp_path)
    without = choose_interpreter(None, {"PATH": str(on_path.parent)}, OWN, tmp_path)

    assert with_active == Interpreter(str(active / "bin" / "python"), "$VIRTUAL_ENV")
    assert without == Interpreter(str(on_path), "python3 on PATH")


def test_scripts_modules_and_programs_each_get_their_command(tmp_path: Path) -> None:
    python = Interpreter("/py", "test")
    script = tmp_path / "train.py"
    script.touch()
    program = make_program(tmp_path / "solver")

    assert build_command(str(script), ("--lr", "1"), python).argv == (
        "/py",
        "-u",
        str(script),
        "--lr",
        "1",
    )
    assert build_command("pkg.train", ("x",), python, is_module=True).argv == (
        "/py",
        "-u",
        "-m",
        "pkg.train",
        "x",
    )
    assert build_command(str(program), (), python, no_python=True).argv == (str(program),)
    assert build_command("sh", ("-c", "true"), python).argv[1:] == ("-c", "true")


@pytest.mark.parametrize(
    ("target", "words"),
    [("nothing.py", "does not exist"), ("no-such-program-here", "was not found")],
)
def test_a_missing_target_is_named(target: str, words: str) -> None:
    with pytest.raises(LaunchError, match=f"'{target}' {words}"):
        build_command(target, (), Interpreter("/py", "test"))


@pytest.mark.parametrize(
    ("name", "first_line", "is_refused"),
    [
        ("job.sh", "#!/bin/bash -l", True),
        ("job", "#!/usr/bin/env sh", True),
        ("job", "#!/usr/bin/env python3", False),
        ("job", "#!/opt/pypy/bin/pypy", False),
        ("job", "import torch", False),
        ("train.py", "#!/bin/sh", False),  # a polyglot, as its name says
    ],
)
def test_a_shell_script_in_the_place_of_a_python_script_is_refused_with_what_to_add(
    tmp_path: Path, name: str, first_line: str, is_refused: bool
) -> None:
    script = make_program(tmp_path / name)
    script.write_text(f"{first_line}\n")
    python = Interpreter("/py", "test")

    if is_refused:
        with pytest.raises(LaunchError, match=r"job.*begins with '#!.*': add --no-python"):
            build_command(str(script), (), python)
    else:
        assert build_command(str(script), (), python).argv == ("/py", "-u", str(script))
    assert build_command(str(script), (), python, no_python=True).argv == (str(script),)
    assert build_command(str(script), (), python, is_script=True).argv[0] == "/py"


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="is a folder"):
        build_command(str(tmp_path), (), Interpreter("/py", "test"))


@pytest.mark.parametrize(
    ("argv", "with_checkpoint", "without"),
    [
        (("t", "--resume", "{checkpoint}", "-v"), ("t", "--resume", "/c/5.pt", "-v"), ("t", "-v")),
        (("t", "--resume={checkpoint}"), ("t", "--resume=/c/5.pt"), ("t",)),
        (("t", "{checkpoint}"), ("t", "/c/5.pt"), ("t",)),
        (
            ("t", "--load", "{checkpoint_dir}", "--ckpt-step", "{checkpoint_step}"),
            ("t", "--load", "/c", "--ckpt-step", "5"),
            ("t",),
        ),
        (("t", "--at={checkpoint_dir}:{checkpoint_tag}"), ("t", "--at=/c:5.pt"), ("t",)),
        (("t", "--rank=${local_rank}"), ("t", "--rank=3"), ("t", "--rank=3")),
    ],
)
def test_the_checkpoint_is_filled_in_or_its_option_left_out(
    argv: tuple[str, ...], with_checkpoint: tuple[str, ...], without: tuple[str, ...]
) -> None:
    assert fill(argv, Restore("/c/5.pt", 5), 3) == with_checkpoint
    assert fill(argv, None, 3) == without


def test_a_step_that_is_not_known_is_left_out_alone() -> None:
    argv = ("t", "--load", "{checkpoint_dir}", "--ckpt-step", "{checkpoint_step}", "-v")

    assert fill(argv, Restore("/c/last.pt", None), 0) == ("t", "--load", "/c", "-v")


def test_a_path_that_looks_like_a_placeholder_is_not_filled_in_again() -> None:
    restore = Restore("/c/{checkpoint_step}.pt", 5)

    assert fill(("t", "{checkpoint}"), restore, 0) == ("t", "/c/{checkpoint_step}.pt")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch\n", True),
        ("from torch.distributed import init_process_group\n", True),
        ("from lightning import Trainer\n", True),
        ("import numpy\nimport storch\n", False),
        ("", False),
    ],
)
def test_a_script_that_never_names_torch_has_its_master_port_to_itself(
    tmp_path: Path, source: str, expected: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    python = Interpreter("/py", "test")

    assert may_use_torch(build_command(str(script), (), python)) is expected
    assert may_use_torch(build_command("pkg.train", (), python, is_module=True))
    assert not may_use_torch(RankCommand(("/bin/solver",), None))


def command_of(script: Path, *arguments: str) -> RankCommand:
    return build_command(str(script), arguments, Interpreter("/usr/bin/python3", "test"))


def test_checkpoint_in_an_argument_is_taken(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")

    assert takes_checkpoint(command_of(tmp_path / "train.py", "--resume", "{checkpoint}")) is True
    assert takes_checkpoint(command_of(tmp_path / "train.py", "--tag={checkpoint_tag}")) is True


def test_script_that_could_not_know_of_its_checkpoint_takes_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import model\nmodel.load_newest()\n")
    (tmp_path / "model.py").write_text("import torch\n")

    assert takes_checkpoint(command_of(tmp_path / "train.py", "--resume")) is False


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", "import rankmend\n"),
        ("train.py", "import os\npath = os.environ.get('RANKMEND_RESUME_PATH')\n"),
        ("model.py", "import rankmend\n"),
        ("parts/__init__.py", ""),
    ],
)
def test_script_that_may_ask_for_its_checkpoint_is_not_judged(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "train.py").write_text("import model\n")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)

    assert takes_checkpoint(command_of(tmp_path / "train.py")) is None


def test_neither_is_what_is_no_script(tmp_path: Path) -> None:
    program = RankCommand((str(make_program(tmp_path / "run.sh")),), None, is_program=True)

    assert takes_checkpoint(program) is None
    assert takes_checkpoint(RankCommand(("python3", "-u", "-m", "train"), None)) is None


def test_each_rank_is_given_its_own_file_of_a_save_by_rank(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"step_20_rank_{rank}.pt").write_bytes(b"x")
    restore = Restore(str(tmp_path / "step_20_rank_0.pt"), 20)
    argv = ("t", "{checkpoint}", "{checkpoint_dir}/{rank}/{checkpoint_tag}", "out_{rank}.log")

    assert fill(argv, restore, 0, rank=1) == (
        *("t", str(tmp_path / "step_20_rank_1.pt"), f"{tmp_path}/1/step_20_rank_1.pt"),
        "out_{rank}.log",  # the script's own
    )


def test_a_rank_without_a_file_of_its_own_is_given_the_chosen_one(tmp_path: Path) -> None:
    path = tmp_path / "ep1-ba900-rank0.pt"
    path.write_bytes(b"x")

    assert fill(("t", "{checkpoint}"), Restore(str(path), 900), 1, rank=1) == ("t", str(path))
