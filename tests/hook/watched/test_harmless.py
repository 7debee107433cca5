"""`rankmend watch env` may reach every Python of a cluster: a program that is no rank sees nothing of it, whatever it is.

Compared are output, exit code, modules, `sys.path`, finders, caches, `dir(sys)`, environment, threads and descriptors.
"""

import ensurepip
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from rankmend.watch.hook_folder import make_hook_folder
from tests.hook.watched.harmless import KINDS, Pair, every_python

pytestmark = pytest.mark.process
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")
each_version = pytest.mark.parametrize("python", every_python())
each_kind = pytest.mark.parametrize("python", every_python(KINDS))
SLURM_TASK = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "hook"
    make_hook_folder(folder)
    shutil.copytree(folder, folder.with_name("as-made"), symlinks=True)
    return folder


@pytest.fixture
def pair(tmp_path: Path, hook: Path) -> Pair:
    return Pair(tmp_path, hook)


@each_version
def test_interpreter_without_options_is_the_same(pair: Pair, python: str) -> None:
    pair.same(python, pair.script(pair.show()), "an argument")


# Together what does not keep Python from what it would do at its start else.
@each_kind
@pytest.mark.parametrize("flags", ["-I", "-E", "-S", "-s -B -u -O -W error", "-X dev"])
def test_interpreter_with_any_option_is_the_same(pair: Pair, python: str, flags: str) -> None:
    if "2.7" in python and flags in {"-I", "-X dev"}:
        pytest.skip("no such option")

    pair.same(python, *flags.split(), pair.script(pair.show()), "an argument")


@each_kind
@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONPATH": "/nonexistent:modules", "HOME": "/nonexistent", "PYTHONHASHSEED": "0"},
        {"PYTHONPATH": "modules:", "HOME": "unset", "PYTHONNOUSERSITE": "1"},
        {"PYTHONPATH": ":", "PATH": "unset", "PYTHONUNBUFFERED": "1"},
        {"PYTHONPATH": "", "LC_ALL": "C", "PYTHONUTF8": "0"},
        {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "error", "PYTHONDONTWRITEBYTECODE": "1"},
        {"PYTHONPYCACHEPREFIX": "cache"},
    ],
    ids=lambda variables: " ".join(f"{name}={value}" for name, value in variables.items()),
)
def test_interpreter_with_any_variable_is_the_same(
    pair: Pair, python: str, variables: dict[str, str]
) -> None:
    if "2.7" in python and variables.get("PYTHONPATH") == "":
        pytest.skip("an empty PYTHONPATH is the working folder there, and the lines don't keep it")
    (pair.folder / "modules").mkdir()
    (pair.folder / "modules" / "own.py").touch()
    pair.variables = variables

    pair.same(python, pair.script(pair.show()))


@each_kind
def test_ways_to_start_a_program_are_the_same(pair: Pair, python: str) -> None:
    script = pair.script(pair.show(), "started.py")
    with zipfile.ZipFile(pair.folder / "app.pyz", "w") as archive:
        archive.write(script, "__main__.py")

    pair.same(python, "-c", pair.show())
    pair.same(python, "-m", "started")
    pair.same(python, "app.pyz")
    pair.same(python, "-", given=pair.show())
    pair.same(python, "-c", "import sys; sys.exit(7)", code=7)
    pair.same(python, "-c", "import os; os._exit(3)", code=3)
    pair.same(python, "-c", "raise ValueError('mine')", code=1)
    pair.same(python, "gone.py", code=2)


@each_version
def test_names_of_imported_modules_are_the_same(pair: Pair, python: str) -> None:
    """As -X importtime tells them: 3.7 and later."""
    if any(old in python for old in ("2.7", "3.6")):
        pytest.skip("no such option")

    ends = pair.both(python, "-X", "importtime", "-c", "import json")

    names = [[line.rpartition("|")[2] for line in end.stderr.splitlines()] for end in ends]
    assert names[0] == names[1]


LOOKS = "import sys; sys.stdout.write('%s\\n' % sys.path)"
CUSTOM = {
    "works": (
        f"import sys, pack, json; sys.stdout.write('mine %s\\n' % __name__); {LOOKS}\n"
        "sys.path.append('/mine'); sys.mine = 1"
    ),
    "raises": "raise RuntimeError('broken here')",
    "no module": "import nowhere",
    "exits": "import os; os._exit(5)",
    "leaves": "raise SystemExit(4)",
}


@each_version
@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_sitecustomize_of_the_site_runs_as_ever(pair: Pair, python: str, name: str) -> None:
    watched = run_custom(pair, python, "works", name)

    # A virtual environment has no site of a user.
    assert ("mine " + name in watched) or (name == "usercustomize" and python == sys.executable)


@each_kind
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *[(kind, "sitecustomize") for kind in CUSTOM if kind != "works"],
        *[(kind, "usercustomize") for kind in ("raises", "leaves")],
    ],
)
def test_sitecustomize_of_the_site_ends_as_ever(
    pair: Pair, python: str, kind: str, name: str
) -> None:
    run_custom(pair, python, kind, name)


def run_custom(pair: Pair, python: str, kind: str, name: str) -> str:
    """Run a program after a sitecustomize of the site; return what it prints with ours before it."""
    modules = pair.folder / "modules"
    modules.mkdir()
    (modules / "pack.py").write_text("word = 1")
    (modules / f"{name}.py").write_text(CUSTOM[kind])
    pair.variables = {"PYTHONPATH": str(modules), "PYTHONDONTWRITEBYTECODE": "1"}
    script = pair.script(pair.show())

    without, watched = pair.both(python, script)

    assert (watched.stdout, watched.returncode) == (without.stdout, without.returncode)
    if kind == "leaves":  # Python shows its own frames then, and so ours
        assert watched.stderr.splitlines()[-1:] == without.stderr.splitlines()[-1:]
    else:
        assert watched.stderr == without.stderr
    return watched.stdout


def make_environment(pair: Pair, python: str) -> Path:
    """Make a virtual environment, and return its site-packages."""
    done = pair.run([python, "-m", "venv", "--without-pip", "venv"], is_watched=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (packages,) = (pair.folder / "venv" / "lib").glob("python*/site-packages")
    return packages


@each_kind
def test_virtual_environment_is_the_same(pair: Pair, python: str) -> None:
    if "2.7" in python:
        pytest.skip("no venv")
    packages = make_environment(pair, python)
    (packages / "pack.py").write_text("import sys; sys.stdout.write('from a .pth\\n')")
    (packages / "hooked.pth").write_text("import pack\n")
    inside = str(pair.folder / "venv" / "bin" / "python")

    assert "from a .pth" in pair.same(inside, pair.script(pair.show()))

    (packages / "sitecustomize.py").write_text("import pack, sys; sys.stdout.write('mine\\n')")
    assert "mine" in pair.same(inside, pair.script(pair.show()))
    (packages / "broken.pth").write_text("import nowhere\n")
    pair.same(inside, pair.script(pair.show()))


def make_prefix(pair: Pair, python: str) -> str:
    """Make a whole tree with an interpreter, as conda does, and return its python."""
    told = pair.run(
        [python, "-c", "import os, sys; print(os.path.realpath(sys.executable)); print(os.path.dirname(os.__file__))"],
        is_watched=False,
    ).stdout.split()  # fmt: skip
    binary, library = Path(told[0]), Path(told[1])
    root = pair.folder / "conda"
    (root / "bin").mkdir(parents=True)
    shutil.copy2(binary, root / "bin" / "python")
    for shared in binary.parent.parent.glob("lib/libpython*"):
        (root / "lib").mkdir(exist_ok=True)
        (root / "lib" / shared.name).symlink_to(shared)
    (root / "lib" / library.name / "site-packages").mkdir(parents=True)
    for entry in library.iterdir():
        if entry.name != "site-packages":  # with what is compiled: nothing is written
            (root / "lib" / library.name / entry.name).symlink_to(entry)
    return str(root / "bin" / "python")


@each_kind
def test_prefix_as_of_conda_is_the_same(pair: Pair, python: str) -> None:
    inside = make_prefix(pair, python)
    (packages,) = (pair.folder / "conda" / "lib").glob("python*/site-packages")
    pair.variables = {"CONDA_PREFIX": str(pair.folder / "conda"), "PYTHONDONTWRITEBYTECODE": "1"}

    assert str(packages) in pair.same(inside, pair.script(pair.show()))
    (packages / "sitecustomize.py").write_text("import sys; sys.stdout.write('conda\\n')")
    assert pair.same(inside, pair.script(pair.show())).startswith("conda\n")


@each_version
def test_task_of_a_step_differs_by_one_finder_alone(pair: Pair, python: str) -> None:
    pair.variables = SLURM_TASK
    script = pair.script(pair.show().replace("type(one).__name__", "type(one).__module__"))

    without, watched = pair.both(python, script)

    awaits = '"_rankmend_on_import", '
    is_watched = not any(old in python for old in ("2.7", "3.6", "3.7"))
    assert watched.stdout.count(awaits) == is_watched
    assert watched.stdout.replace(awaits, "") == without.stdout
    assert (watched.stderr, watched.returncode) == (without.stderr, 0)


CHILDREN = """\
import multiprocessing, subprocess, sys
def work(number):
    print(sorted(name for name in sys.modules if "rankmend" in name or "sitecustomize" in name), sys.path, flush=True)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        child = multiprocessing.get_context(method).Process(target=work, args=(1,))
        child.start(); child.join(); print(method, child.exitcode, flush=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(work, [1])
    sys.exit(subprocess.call([sys.executable, "-c", SHOW]))
"""


@each_kind
@pytest.mark.parametrize("variables", [{}, SLURM_TASK], ids=["no rank", "task"])
def test_children_are_the_same(pair: Pair, python: str, variables: dict[str, str]) -> None:
    if "2.7" in python:
        pytest.skip("no start methods")
    pair.variables = variables
    show = "import sys; print(sys.path, sorted(sys.modules), sorted(dir(sys)))"

    told = pair.same(python, pair.script(f"SHOW = {show!r}\n{CHILDREN}"))

    assert "fork 0" in told
    assert "forkserver 0" in told


def test_pip_and_venv_work_as_ever(pair: Pair) -> None:
    wheel = pair.folder / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy.py", "word = 'installed'\n")
        archive.writestr(
            "toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n"
        )
        archive.writestr(
            "toy-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("toy-1.0.dist-info/RECORD", "")
    fresh = pair.folder / "env"
    python = str(fresh / "bin" / "python")
    (bundled,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    pair.variables = {"PYTHONPATH": str(bundled)}  # as a venv has it: to install pip takes 5 s
    make = f"{sys.executable} -m venv --without-pip env"
    install = f"{python} -m pip install --no-index --quiet {wheel}"

    told = pair.same(
        "sh",
        "-ec",
        f"{make} && {install} && {python} -c 'import toy; print(toy.word)'",
        fresh=fresh,
    )

    assert told == "installed\n"


@needs_root
@each_kind
def test_another_user_who_may_not_read_the_folder_notices_nothing(
    pair: Pair, python: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not os.access(os.path.realpath(python), os.X_OK) or "/root/" in os.path.realpath(python):
        pytest.skip("this Python is root's alone")
    closed = tmp_path_factory.mktemp("closed") / "hook"
    make_hook_folder(closed)
    closed.chmod(0o700)
    pair.hook = closed
    pair.prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")

    pair.same(python, "-c", "import sys; print(sorted(sys.modules))")


@each_kind
def test_folder_that_is_gone_is_not_missed(pair: Pair, python: str) -> None:
    pair.hook = pair.folder / "gone"
    for variables in ({}, SLURM_TASK):
        pair.variables = variables
        pair.same(python, "-c", "import sys; print(sorted(sys.modules))")


@each_kind
def test_site_of_a_folder_that_lost_its_library_is_run_all_the_same(
    pair: Pair, python: str
) -> None:
    pair.hook = pair.folder / "hook"
    make_hook_folder(pair.hook)
    shutil.rmtree(pair.hook / "lib-rankmend")
    modules = pair.folder / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(LOOKS)
    pair.variables = {**SLURM_TASK, "PYTHONPATH": "modules", "PYTHONDONTWRITEBYTECODE": "1"}

    assert "modules" in pair.same(python, "-c", "import sys; print(sorted(sys.modules))")


@each_kind
def test_damaged_folder_is_silent(pair: Pair, python: str) -> None:
    pair.hook = pair.folder / "hook"
    make_hook_folder(pair.hook)
    shutil.rmtree(pair.hook / "lib-rankmend")
    pair.variables = SLURM_TASK

    pair.same(python, pair.script(pair.show()))


def test_nothing_is_written_to_the_folder(hook: Path) -> None:
    """By all programs above: root runs them, who may write anywhere."""
    assert _content(hook) == _content(hook.with_name("as-made"))


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }
