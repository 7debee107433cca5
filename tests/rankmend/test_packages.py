"""What pyproject.toml asks of an environment, what the modules import, and what is said of what is missing."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement

from rankmend.errors import MissingPackageError
from rankmend.packages import (
    BASE,
    EXTRAS,
    Extra,
    NeededPackage,
    explain_missing,
    install_line,
    require,
)

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
PROJECT = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["project"]
OURS = {"agent", "detectors", "rankmend", "recovery"}
# Of newer Pythons' own library, behind a look at the version; for older ones from a package.
BACKPORTS = {"backports", "tomli"}
NEWER = {"compression"}
# Of the environment of ranks or of a vendor's driver: rankmend takes them where they are.
FOUND_THERE = {"amdsmi", "jax", "lightning", "torch", "transformers", "pytorch_lightning", "imp"}


def extra_of(name: str) -> list[Requirement]:
    return [Requirement(text) for text in PROJECT["optional-dependencies"][name]]


@cache
def imports() -> tuple[tuple[Path, str, bool], ...]:
    """Return each module of others that a file imports, and whether the file does it as it is loaded."""
    return tuple(_imports())


def _imports() -> Iterator[tuple[Path, str, bool]]:
    for package in sorted(OURS):
        for file in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            at_once = set(tree.body)
            for node in ast.walk(tree):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                for name in {name.partition(".")[0] for name in names}:
                    if name not in OURS and name not in sys.stdlib_module_names:
                        yield file.relative_to(ROOT), name, node in at_once


def test_packages_of_every_installation_are_those_of_the_table() -> None:
    required = [Requirement(text) for text in PROJECT["dependencies"]]

    assert sorted(one.name for one in required if one.marker is None) == [
        package.name for package in sorted(BASE, key=lambda package: package.name)
    ]
    assert {one.name.partition(".")[0] for one in required if one.marker is not None} == BACKPORTS


@pytest.mark.parametrize("extra", Extra)
def test_packages_of_an_extra_are_those_of_the_table(extra: Extra) -> None:
    assert sorted(one.name for one in extra_of(extra.value)) == sorted(
        package.name for package in EXTRAS[extra]
    )


def test_all_brings_every_extra_and_so_do_the_tools_for_developers() -> None:
    (everything,) = extra_of("all")
    developers = next(one for one in extra_of("dev") if one.name == "rankmend")

    assert everything.extras == {extra.value for extra in Extra}
    assert "all" in developers.extras


def test_the_demo_brings_the_agent_that_it_starts() -> None:
    # `make demo` is the README's first command, in an environment with nothing but this extra.
    assert any(one.name == "rankmend" and "agent" in one.extras for one in extra_of("demo"))


def test_every_import_is_of_a_package_that_rankmend_asks_for() -> None:
    known = {one.module for packages in (BASE, *EXTRAS.values()) for one in packages}

    strange = [
        f"{file} imports {name}"
        for file, name, _at_once in imports()
        if name not in known | BACKPORTS | NEWER | FOUND_THERE
    ]

    assert strange == []


def test_each_package_of_the_table_is_imported_somewhere() -> None:
    imported = {name for _file, name, _at_once in imports()}
    by_text = {"matplotlib"}  # rankmend.cli.diagnosis.diagnose_hang: import_module
    named = {one.module for packages in (BASE, *EXTRAS.values()) for one in packages}

    assert named - imported - by_text == set()


def test_no_file_needs_a_package_of_an_extra_to_be_loaded() -> None:
    """Else `rankmend doctor`, or a command's help, would fail where the extra is not installed."""
    base = {package.module for package in BASE}

    wrong = [
        f"{file} imports {name} as it is loaded"
        for file, name, at_once in imports()
        if at_once and name not in base | BACKPORTS
        if file != Path("rankmend/hook/store_host.py")  # a program of its own, beside PyTorch
    ]

    assert wrong == []


def test_what_is_there_is_required_in_silence() -> None:
    for extra in Extra:
        require(extra, "this test")


def test_what_is_missing_is_named_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    with pytest.raises(MissingPackageError) as raised:
        require(Extra.AGENT, "rankmend agent")

    assert str(raised.value) == (
        "rankmend agent needs nvidia-ml-py, which is not installed: pip install nvidia-ml-py"
    )


def test_everything_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("apscheduler", "pynvml"):
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(MissingPackageError, match="needs apscheduler and nvidia-ml-py, which are"):
        require(Extra.AGENT, "rankmend agent")


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("aiohttp.web", "pip install aiohttp"),
        ("uvloop", "pip install uvloop"),
        ("pyarrow", "pip install pyarrow"),
    ],
)
def test_module_that_cannot_be_imported_is_explained(module: str, line: str) -> None:
    text = explain_missing(module, "this command")

    assert text is not None
    assert text.startswith("this command needs ")
    assert text.endswith(f"not installed: {line}")


@pytest.mark.parametrize("module", ["agents", "", None, "rankmend.cli.nothing"])
def test_defect_of_our_own_is_no_missing_package(module: str | None) -> None:
    assert explain_missing(module, "this command") is None


def test_command_without_a_package_of_every_installation_says_so_in_a_line(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['msgspec'] = None; from rankmend.cli import main;"
        f"main(['status', '--json', '--state-dir', {str(tmp_path)!r}])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stderr == (
        "rankmend: rankmend status needs msgspec, which is not installed: pip install msgspec\n"
    )


def test_line_to_type_names_packages_and_not_where_rankmend_came_from() -> None:
    assert install_line(EXTRAS[Extra.AGENT]) == "pip install apscheduler nvidia-ml-py"
    assert {type(one) for packages in EXTRAS.values() for one in packages} == {NeededPackage}
