"""Where `agent`, `detectors` and `recovery` are, and how one of their modules runs as a program.

A checkout has them beside this package, a wheel in the package's folder ``parts``: an environment gets no
`agent`. Only rankmend's own programs put that folder on their path. It comes first there, so another
`agent` in the working folder, on PYTHONPATH or in the environment does no harm.

    python [-I -S] parts_path.py MODULE ARGUMENT ...     runs `main` of the module with these arguments

Standard library only, and little of it: the guardian starts through here.
"""

import os
import sys

_PACKAGE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - pathlib takes 5 ms of a start
PACKAGE_ROOT = os.path.dirname(_PACKAGE)  # noqa: PTH120
_IN_WHEEL = os.path.join(_PACKAGE, "parts")  # noqa: PTH118
PARTS_ROOT = _IN_WHEEL if os.path.isdir(_IN_WHEEL) else PACKAGE_ROOT  # noqa: PTH112


def put_on_path() -> None:
    """Make the parts importable in this process, before anything else of their names."""
    if sys.path[:1] != [PARTS_ROOT]:
        sys.path.insert(0, PARTS_ROOT)
    if PACKAGE_ROOT not in sys.path:  # a Python without site-packages
        sys.path.append(PACKAGE_ROOT)


def program(module: str) -> tuple[str, str]:
    """Return the arguments for Python that run a module of the parts, behind Python's own options."""
    return os.path.join(_PACKAGE, "parts_path.py"), module  # noqa: PTH118


def _run(module: str, arguments: list[str]) -> int | None:
    from importlib import import_module  # noqa: PLC0415 - for programs only

    code: int | None = import_module(module).main(arguments)
    return code


if __name__ == "__main__":
    if sys.path[:1] == [
        _PACKAGE
    ]:  # a script's folder: its `logs` and `clock` are no top-level modules
        del sys.path[0]
    put_on_path()
    sys.exit(_run(sys.argv[1], sys.argv[2:]))
