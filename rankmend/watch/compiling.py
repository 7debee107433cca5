"""Compiles the files of the hook folder through which each process comes, for the Python that runs this.

    python -I compiling.py FILE ...     for another Python than that of rankmend, 3.8 or later

To compile them at each start takes 1 to 3 ms. The code has a hash of its source: in a folder that was copied, or is just
brought up to date, Python takes no other code than that of the source. Standard library and Python 3.8.
"""

from __future__ import annotations

import py_compile
import sys
from pathlib import Path

LEVELS = ("", "1", "2")  # of python -O


def name_of(module: str, tag: str, level: str) -> str:
    """Return what Python calls the file with a module's code; ``tag``: of the version."""
    return f"{module}.{tag}{level and f'.opt-{level}'}.pyc"


def compile_for_this(sources: list[Path]) -> None:
    """Put the code of these files there. Raises OSError or `py_compile.PyCompileError`."""
    tag = str(sys.implementation.cache_tag)
    for source in sources:
        for level in LEVELS:
            target = source.parent / "__pycache__" / name_of(source.stem, tag, level)
            if target.is_dir():
                target.rmdir()
            how = py_compile.PycInvalidationMode.CHECKED_HASH
            py_compile.compile(
                str(source),
                str(target),
                doraise=True,
                optimize=int(level or 0),
                invalidation_mode=how,
            )
            target.chmod(0o644)


if __name__ == "__main__":
    compile_for_this([Path(name) for name in sys.argv[1:]])
