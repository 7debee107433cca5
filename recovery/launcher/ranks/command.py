"""The command of each rank: interpreter, script or module, and the arguments filled in."""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rankmend.errors import LaunchError
from recovery.checkpoints.names import with_rank
from recovery.launcher.ranks.contained import RankPrefix
from recovery.messages.exchange import Restore

# Placeholders for the checkpoint to resume from: its path, its folder, its step, and its name in the folder.
PLACEHOLDERS = ("{checkpoint}", "{checkpoint_dir}", "{checkpoint_step}", "{checkpoint_tag}")
_PLACEHOLDER = re.compile("|".join(map(re.escape, PLACEHOLDERS)))
_SCRIPT_BYTES_MAX = 1 << 20
_NAME_CHARS_MAX = 100
_HASH_CHARS = 12
_FIRST_LINE_BYTES_MAX = 256  # as the kernel reads
_TORCH = re.compile(
    rb"\b(torch|lightning|pytorch_lightning|accelerate|transformers|deepspeed|megatron|nemo|"
    rb"fairscale|composer|trl|axolotl|unsloth)\b"
)
_USES_RESUME = re.compile(rb"rankmend|RANKMEND_RESUME")
_FILES_MAX = 100  # that are read; a folder with more is no place for one script
_LOCAL_RANK = "${local_rank}"  # torchrun's macro
_RANK = "{rank}"  # in an argument that also names the checkpoint
# Files that pipx and uv write into an environment made for a single tool.
_TOOL_MARKERS = ("pipx_metadata.json", "uv-receipt.toml", "rankmend-tool")


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class RankCommand:
    """The argument list of the ranks, `{checkpoint}`, the like and `${local_rank}` not yet filled in."""

    argv: tuple[str, ...]
    interpreter: Interpreter | None  # None: the command is not Python, or not one of this host
    prefix: RankPrefix | None = None  # what runs in front of it, perhaps in a container
    is_program: bool = (
        False  # not Python: a shell script, say, that may run several Pythons, one after the other
    )

    @property
    def script(self) -> str | None:
        """The script that this host's Python runs; None: a module or another program."""
        if self.interpreter is None or self.argv[2] == "-m":
            return None
        return self.argv[2]


def choose_interpreter(
    explicit: str | None, environment: Mapping[str, str], own_path: str, own_prefix: Path
) -> Interpreter:
    """Return the Python for the ranks: the user's, never rankmend's own.

    As with torchrun, it is the interpreter that runs rankmend, unless that belongs to an environment
    made for rankmend alone (pipx, uv tool, or one that contains a file named rankmend-tool).
    """
    named = explicit or environment.get("PYTHON_EXEC")
    if named:
        path = shutil.which(named, path=environment.get("PATH"))
        if path is None:
            raise LaunchError(
                f"the Python interpreter {named!r} does not exist or is not executable"
            )
        return Interpreter(path, "--python" if explicit else "PYTHON_EXEC")
    if not any((own_prefix / marker).exists() for marker in _TOOL_MARKERS):
        return Interpreter(own_path, "the one that rankmend runs under")
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = environment.get(variable)
        if folder and os.access(Path(folder) / "bin" / "python", os.X_OK):
            return Interpreter(str(Path(folder) / "bin" / "python"), f"${variable}")
    path = shutil.which("python3", path=environment.get("PATH"))
    if path is None:
        raise LaunchError("no python3 on PATH; name the training interpreter with --python")
    return Interpreter(path, "python3 on PATH")


def build_command(
    target: str,
    arguments: tuple[str, ...],
    interpreter: Interpreter,
    *,
    is_module: bool = False,
    no_python: bool = False,
    is_script: bool = False,
) -> RankCommand:
    """Return the command of the ranks: a script, a module (-m) or any program.

    A target that is a program on PATH (``bash``) and not a file runs directly, as with ``--no-python``;
    torchrun would hand it to Python, which could only fail. ``is_script`` (--run-path) overrides the
    other two, as in torchrun.
    """
    if is_script:
        is_module = no_python = False
    if is_module and no_python:
        raise LaunchError("--module and --no-python exclude each other")
    if is_module:
        return RankCommand((interpreter.path, "-u", "-m", target, *arguments), interpreter)
    is_file = Path(target).is_file()
    if no_python or (
        not is_script and not is_file and "/" not in target and not target.endswith(".py")
    ):
        program = shutil.which(target)
        if program is None:
            what = "is not executable" if is_file else "was not found"
            raise LaunchError(f"the program {target!r} {what}")
        return RankCommand((program, *arguments), None, is_program=True)
    if not is_file:
        what = "is a folder" if Path(target).is_dir() else "does not exist"
        raise LaunchError(f"the script {target!r} {what} (in {Path.cwd()})")
    if not is_script and (other := _other_interpreter(Path(target))) is not None:
        raise LaunchError(
            f"{target!r} is no Python script, it begins with {other!r}: add --no-python, or give the Python script that it starts"
        )
    return RankCommand((interpreter.path, "-u", target, *arguments), interpreter)


def _other_interpreter(script: Path) -> str | None:
    """Return the first line of a script that names an interpreter other than Python, or None."""
    if script.suffix == ".py":
        return None
    try:
        with script.open("rb") as file:
            line = file.readline(_FIRST_LINE_BYTES_MAX)
    except OSError:
        return None  # Python will say so
    if not line.startswith(b"#!") or b"py" in line:
        return None
    return line.decode("ascii", "replace").rstrip()


def build_contained_command(
    target: str,
    arguments: tuple[str, ...],
    python: str,
    prefix: RankPrefix,
    *,
    is_module: bool = False,
    no_python: bool = False,
    is_script: bool = False,
) -> RankCommand:
    """Return the command of ranks behind a prefix. Nothing of it is looked for here: the container may have other files."""
    if is_script:
        is_module = no_python = False
    if is_module and no_python:
        raise LaunchError("--module and --no-python exclude each other")
    looks_like_script = "/" in target or target.endswith(".py") or Path(target).is_file()
    if no_python or not (is_module or is_script or looks_like_script):
        return RankCommand((target, *arguments), None, prefix, is_program=True)
    module = ("-m",) if is_module else ()
    return RankCommand((python, "-u", *module, target, *arguments), None, prefix)


def may_use_torch(command: RankCommand) -> bool:
    """Return whether the ranks may meet through PyTorch's rendezvous.

    A script that mentions neither PyTorch nor a library built on it may listen on MASTER_PORT itself,
    where our store would be in its way. Modules and programs are assumed to use it, as torchrun assumes
    of everything.
    """
    if command.interpreter is None:
        return False
    if len(command.argv) < 3 or command.argv[2] == "-m":
        return True
    try:
        with Path(command.argv[2]).open("rb") as script:
            return _TORCH.search(script.read(_SCRIPT_BYTES_MAX)) is not None
    except OSError:
        return True


def program_of(command: RankCommand) -> str:
    """Return which script the ranks run, as ``NAME:CONTENT`` with a short hash of the content; empty: it can't be read.

    Two jobs run two scripts where both differ (`detectors.node.charges.is_other_program`).
    """
    argv = command.argv
    target = argv[0] if command.interpreter is None else "".join(argv[2:3])
    if command.interpreter is not None and target == "-m":
        name = "".join(argv[3:4])
        return f"{name[:_NAME_CHARS_MAX]}:{hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARS]}"
    try:
        with Path(target).open("rb") as file:
            content = hashlib.sha256(file.read(_SCRIPT_BYTES_MAX)).hexdigest()
    except OSError:
        return ""
    name = Path(target).name.replace(":", "_")[:_NAME_CHARS_MAX]
    return f"{name}:{content[:_HASH_CHARS]}"


def takes_checkpoint(command: RankCommand) -> bool | None:
    """Return whether the ranks begin from the checkpoint that they are given; None: nobody knows.

    They do where an argument names it. Where none does, a Python script could still ask `rankmend.resume()` or read
    RANKMEND_RESUME_PATH, and so could a file beside it: if none of them mentions either, it finds one itself.
    """
    if any(name in argument for argument in command.argv for name in PLACEHOLDERS):
        return True
    if command.interpreter is None or len(command.argv) < 3 or command.argv[2] == "-m":
        return None
    script = Path(command.argv[2])
    try:
        beside = sorted(path for path in script.parent.glob("*.py") if path != script)
        files = [script, *beside]
        if len(files) > _FILES_MAX:
            return None
        for path in files:
            with path.open("rb") as file:
                text = file.read(_SCRIPT_BYTES_MAX + 1)
            if len(text) > _SCRIPT_BYTES_MAX or _USES_RESUME.search(text):
                return None
        is_alone = not any(
            path.is_dir() for path in script.parent.iterdir() if (path / "__init__.py").exists()
        )
    except OSError:
        return None
    return False if is_alone else None


def fill(
    argv: tuple[str, ...], restore: Restore | None, local_rank: int, rank: int | None = None
) -> tuple[str, ...]:
    """Return the arguments of one rank with the chosen checkpoint and its ranks filled in.

    Where each rank has saved a file of its own, `{checkpoint}` is this rank's. `{rank}` is filled in only beside
    one of the others: a script may have a pattern of its own.

    If a value is missing (no checkpoint, or an unknown step), an argument that contains its placeholder
    is dropped, and with it the option before it if the argument is nothing but the placeholder:
    `--resume {checkpoint}` goes entirely.
    """
    values = _values_of(restore if restore is None or rank is None else _of_rank(restore, rank))
    filled: list[str] = []
    for argument in argv:
        missing = [name for name, value in values.items() if value is None and name in argument]
        if missing:
            if argument in missing and filled and filled[-1].startswith("-"):
                filled.pop()
            continue
        text = _PLACEHOLDER.sub(lambda found: values[found[0]] or "", argument)
        if rank is not None and _PLACEHOLDER.search(argument):
            text = text.replace(_RANK, str(rank))
        filled.append(text.replace(_LOCAL_RANK, str(local_rank)))
    return tuple(filled)


def _of_rank(restore: Restore, rank: int) -> Restore:
    """Return the file of this rank, where the chosen one is the first rank's of several."""
    directory, separator, tag = restore.path.rpartition("/")
    own = with_rank(tag, rank)
    if own is None or not Path(directory or "/", own).is_file():
        return restore
    return replace(restore, path=f"{directory}{separator}{own}")


def _values_of(restore: Restore | None) -> dict[str, str | None]:
    """Return the value of each checkpoint placeholder; None: no value."""
    if restore is None:
        return dict.fromkeys(PLACEHOLDERS)
    directory, _, tag = restore.path.rpartition("/")
    step = None if restore.step is None else str(restore.step)
    return dict(zip(PLACEHOLDERS, (restore.path, directory or "/", step, tag), strict=True))
