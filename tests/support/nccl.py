"""Libraries with the one function of NCCL that tells its version, made by the C compiler."""

import shutil
import subprocess
from pathlib import Path

COMPILER = shutil.which("cc")
WHY_NOT = "" if COMPILER else "no C compiler (cc)"


def make_nccl(folder: Path, version: int, name: str = "libnccl.so.2", code: int = 0) -> Path:
    """Make a library that tells this version, as ncclGetVersion of nccl.h does; ``code``: its result."""
    body = f"int ncclGetVersion(int *version) {{ *version = {version}; return {code}; }}"
    return make_library(folder / name, body)


def make_library(path: Path, body: str) -> Path:
    assert COMPILER is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [COMPILER, "-shared", "-fPIC", "-x", "c", "-o", str(path), "-"]
    subprocess.run(command, input=body, text=True, check=True, timeout=120)
    return path
