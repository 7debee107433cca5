"""The wheel of this checkout, and environments with it and no more than it asks for. Nothing is downloaded."""

import contextlib
import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.eventually import DEADLINE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a source tree or of an sdist."""
    command = (*PIP, "wheel", "--no-index", "--no-build-isolation", "--no-deps")
    _run(*command, f"--wheel-dir={folder}", str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


def build_sdist(source: Path, folder: Path) -> Path:
    _run(
        sys.executable, "-m", "hatchling", "build", "--target=sdist", "-d", str(folder), cwd=source
    )
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


@dataclass(frozen=True)
class Environment:
    """A virtual environment; what it has of others are links to the packages of the tests' own."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def command(self) -> str:
        return str(self.folder / "bin" / "rankmend")

    @property
    def site(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    def install(self, wheel: Path) -> None:
        pip = (*PIP, "--python", self.python, "install", "--no-index", "--no-deps")
        _run(*pip, "--no-compile", str(wheel))


def make_environment(folder: Path, wheel: Path, *extras: str) -> Environment:
    """Make an environment as `pip install WHEEL[EXTRAS]` does."""
    venv.create(folder, symlinks=True)
    made = Environment(folder)
    made.install(wheel)
    own = next(made.site.glob("rankmend-*.dist-info"))
    for needed in _closure(Distribution.at(own), extras, set()):
        for name in _top_level(needed):
            link = made.site / name
            if not link.exists():
                link.symlink_to(Path(str(needed.locate_file(name))))
    return made


def _closure(
    needing: Distribution, extras: Iterable[str], seen: set[tuple[str, str]]
) -> list[Distribution]:
    """Return every distribution that this one needs here, directly or not."""
    found = []
    for text in needing.requires or ():
        wanted = Requirement(text)
        if wanted.marker and not any(
            wanted.marker.evaluate({"extra": extra}) for extra in (*extras, "")
        ):
            continue
        one = distribution(wanted.name)
        key = (one.metadata["Name"].lower(), ",".join(sorted(wanted.extras)))
        if key not in seen:
            seen.add(key)
            if key[0] == "rankmend":  # an extra that names others
                found += _closure(needing, wanted.extras, seen)
            else:
                found += [one, *_closure(one, wanted.extras, seen)]
    return found


def _top_level(one: Distribution) -> set[str]:
    names = {file.parts[0] for file in one.files or ()}
    return {name for name in names if name not in ("..", "__pycache__")}


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, timeout=DEADLINE_S
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"


def clean_variables(**more: str) -> dict[str, str]:
    """Return the environment without what leads to this checkout."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "RANKMEND_", "VIRTUAL_ENV", "SLURM_"))
    }
    return kept | more


def run(
    *command: str, cwd: Path, timeout_s: float = DEADLINE_S, **variables: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=clean_variables(**variables),
        timeout=timeout_s,
    )


@contextmanager
def started(
    log: Path, *command: str, cwd: Path, **variables: str
) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=clean_variables(**variables),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_said(log: Path, text: str) -> str:
    """Return the first line with this text, once it is there."""

    def line() -> str:
        lines = log.read_text(errors="replace").splitlines()
        return next((one for one in lines if text in one), "")

    return eventually(line, lambda: f"{text}\n{log.read_text(errors='replace')}")


def has_child(pid: int, word: str) -> bool:
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # threads and processes come and go
            for child in tasks.read_text().split():
                if word in Path(f"/proc/{child}/cmdline").read_text():
                    return True
    return False
