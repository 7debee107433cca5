"""Before which import a rank's environment had changed, and which import changed it."""

import json
from pathlib import Path
from typing import Any

import pytest

from rankmend.hook import layout
from tests.support.hook import Rank, each_python

pytestmark = pytest.mark.process

PACKAGES = {
    "reader/__init__.py": "",
    "reader/late.py": "",
    "setter/__init__.py": "import os; os.environ['MADE'] = 'yes'; import nested; from . import part",
    "setter/part.py": "",
    "nested/__init__.py": "import os; os.environ['DEEP'] = 'yes'; os.environ.pop('GONE', None)",
    "broken/__init__.py": "import os; os.environ['BROKEN'] = 'yes'; 1 / 0",
}


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    for name, text in PACKAGES.items():
        path = tmp_path / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "users.py").write_text("import os; os.environ['USERS'] = 'yes'; import reader")
    made = Rank(tmp_path)
    told = str(tmp_path / "told")
    path = f"{made.site}:{tmp_path / 'site-packages'}:{tmp_path}"
    made.environment = {layout.ENV_IMPORTS_FILE: told, "PYTHONPATH": path, "GONE": "not yet"}
    return made


def told_by(rank: Rank) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((rank.folder / "told").read_text())
    return told


def met(told: dict[str, Any], name: str) -> dict[str, str | None]:
    """Return what had changed when this module was searched for, without what the site does."""
    names = [module for module, _origin in told["modules"]]
    found: dict[str, str | None] = {}
    for index, variables in told["changes"]:
        if index <= names.index(name):
            found = variables
    of_site = told["by_imports"].get("sitecustomize", {})
    return {name: value for name, value in found.items() if name not in of_site}


@each_python
def test_each_module_is_told_with_what_had_changed_before_its_import(
    rank: Rank, python: str
) -> None:
    rank.run(
        python,
        """
        import os
        import importlib.util
        importlib.util.find_spec("reader")  # does not import it
        os.environ["FIRST"] = "1"
        import users
        del os.environ["FIRST"]
        import reader.late
        os.environ["AFTER"] = "1"
        import rankmend
        rankmend.step(1)
        """,
    )

    told = told_by(rank)
    assert met(told, "reader") == {"FIRST": "1", "USERS": "yes"}
    assert met(told, "reader.late") == {"USERS": "yes"}
    assert set(told["by_imports"]) <= {"sitecustomize"}


@each_python
def test_what_an_import_changes_is_told_as_its_own_and_the_rest_as_the_scripts(
    rank: Rank, python: str
) -> None:
    rank.run(
        python,
        """
        import os
        os.environ["FIRST"] = "1"
        import setter
        os.environ["MADE"] = "by the script"
        try:
            import broken
        except ZeroDivisionError:
            pass
        import reader
        import rankmend
        rankmend.step(1)
        """,
    )

    told = told_by(rank)
    by_imports = {name: made for name, made in told["by_imports"].items() if name in PACKAGE_NAMES}
    assert by_imports == {
        "setter": {"MADE": "yes"},
        "nested": {"DEEP": "yes", "GONE": None},
        "broken": {"BROKEN": "yes"},
    }
    assert met(told, "setter") == {"FIRST": "1"}
    assert met(told, "nested") == {"FIRST": "1", "MADE": "yes"}
    assert met(told, "reader") == {
        "FIRST": "1",
        "MADE": "by the script",
        "DEEP": "yes",
        "GONE": None,
        "BROKEN": "yes",
    }


PACKAGE_NAMES = {name.partition("/")[0] for name in PACKAGES}

LOOK = """
import importlib.machinery, sys, traceback
import setter, json, decimal
kinds = {type(m.__spec__) for m in (setter, json, decimal)}
finders = [type(f).__name__ for f in sys.meta_path if "rankmend" in type(f).__module__]
try:
    import broken
except ZeroDivisionError:
    lines = traceback.format_exc()
try:
    import absent
except ImportError as error:
    lines += repr(error) + repr(error.name)
import rankmend
rankmend.step(1)
after = [f for f in sys.meta_path if "rankmend" in type(f).__module__]
print(kinds == {importlib.machinery.ModuleSpec}, setter.__spec__._initializing, after)
print(lines)
"""


@each_python
def test_the_script_sees_the_modules_and_errors_that_it_would_without(
    rank: Rank, python: str
) -> None:
    asked = rank.run(python, LOOK)
    assert (rank.folder / "told").exists()
    del rank.environment[layout.ENV_IMPORTS_FILE]

    plain = rank.run(python, LOOK)

    assert asked == plain
    assert plain.startswith("True False []\n")


@each_python
def test_a_rank_that_nobody_asks_has_no_finder_of_this(rank: Rank, python: str) -> None:
    code = "import sys; print('rankmend.hook.import_order' in sys.modules)"
    assert rank.run(python, code) == "True\n"
    del rank.environment[layout.ENV_IMPORTS_FILE]

    assert rank.run(python, code) == "False\n"


@each_python
def test_a_finder_of_the_users_that_refuses_still_does(rank: Rank, python: str) -> None:
    code = """
        import sys
        class Refusing:
            def find_spec(self, name, path=None, target=None):
                if name == "reader":
                    raise ImportError("not today")
        sys.meta_path.insert(1, Refusing())
        try:
            import reader
        except ImportError as error:
            print(error)
        import nested, rankmend
        rankmend.step(1)
        """

    assert rank.run(python, code) == "not today\n"
    assert "nested" in dict(told_by(rank)["modules"])


@each_python
def test_a_script_that_replaces_the_environment_imports_as_ever(rank: Rank, python: str) -> None:
    code = """
        import os
        os.environ = dict(os.environ)
        import reader
        print("imported")
        """

    assert rank.run(python, code) == "imported\n"


@each_python
def test_threads_that_import_and_change_the_environment_at_once_are_not_disturbed(
    rank: Rank, python: str
) -> None:
    for number in range(80):
        path = rank.folder / "site-packages" / f"package{number}"
        path.mkdir()
        (path / "__init__.py").write_text("from . import part")
        (path / "part.py").write_text("import os; os.environ['PART'] = __name__")

    printed = rank.run(
        python,
        """
        import importlib, os, sys, threading
        sys.setswitchinterval(1e-5)
        failed = []
        def load(first):
            try:
                for number in range(first, 80, 8):
                    os.environ["THREAD%d" % first] = str(number)
                    importlib.import_module("package%d" % number)
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=load, args=(first,)) for first in range(8)]
        for one in threads: one.start()
        for one in threads: one.join()
        import rankmend
        rankmend.step(1)
        print(failed)
        """,
    )

    told = told_by(rank)
    assert printed == "[]\n"
    modules = dict(told["modules"])
    assert {f"package{number}.part" for number in range(80)} <= set(modules)
    for number in range(80):
        assert met(told, f"package{number}")[f"THREAD{number % 8}"] == str(number)
