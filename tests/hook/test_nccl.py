"""Which NCCL a rank has loaded: real processes with real libraries, made by the C compiler."""

import importlib.util
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankmend.errors import SourceError
from rankmend.hook import layout
from rankmend.progress import nccl_version
from tests.support.hook import RUN_S_MAX, Rank, each_python
from tests.support.nccl import WHY_NOT, make_library, make_nccl

pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
STEP = """
import ctypes, rankmend
for path in {paths!r}:
    ctypes.CDLL(path)
rankmend.step(1)
"""


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def told_by(rank: Rank, *libraries: Path, python: str = sys.executable) -> tuple[str, ...]:
    rank.run(python, STEP.format(paths=[str(path) for path in libraries]))
    return rank.read().nccl


@each_python
def test_the_version_is_that_of_the_loaded_library(rank: Rank, python: str) -> None:
    make_nccl(rank.folder / "not loaded", 21805)
    loaded = make_nccl(rank.folder / "with a space", 22703)

    assert told_by(rank, loaded, python=python) == ("2.27.3",)


def test_a_rank_without_nccl_tells_none(rank: Rank) -> None:
    assert told_by(rank) == ()


def test_a_rank_that_has_loaded_two_tells_both_and_a_third_that_is_like_one_of_them_not(
    rank: Rank,
) -> None:
    libraries = [
        make_nccl(rank.folder / "a", 22703),
        make_nccl(rank.folder / "b", 22105, "libnccl.so.2.21.5"),
        make_nccl(rank.folder / "c", 22703, "librccl.so.1"),
    ]

    assert told_by(rank, *libraries) == ("2.21.5", "2.27.3")


def test_plugins_are_no_nccl(rank: Rank) -> None:
    assert told_by(rank, make_nccl(rank.folder, 22703, "libnccl-net.so")) == ()


def test_nccl_inside_of_pytorch_is_asked_where_there_is_no_library_of_it(rank: Rank) -> None:
    inside = make_nccl(rank.folder, 21403, "libtorch_cuda.so")
    assert told_by(rank, inside) == ("2.14.3",)
    assert told_by(rank, inside, make_nccl(rank.folder, 22703)) == ("2.27.3",)


def test_a_library_whose_file_was_replaced_since_is_the_one_that_is_loaded(rank: Rank) -> None:
    loaded, newer = make_nccl(rank.folder, 22105), make_nccl(rank.folder / "new", 22703)
    rank.run(
        sys.executable,
        f"""
        import ctypes, os, rankmend
        ctypes.CDLL({str(loaded)!r})
        os.rename({str(newer)!r}, {str(loaded)!r})
        rankmend.step(1)
        """,
    )

    assert rank.read().nccl == ("2.21.5",)


@pytest.mark.parametrize(
    "body",
    [
        "int other(void) { return 0; }",
        "int ncclGetVersion(int *version) { *version = 22703; return 3; }",
        "int ncclGetVersion(int *version) { *version = -22703; return 0; }",
        "int ncclGetVersion(int *version) { *version = 2147483647; return 0; }",
        "int ncclGetVersion(int *version) { return 0; }",
    ],
)
def test_a_library_that_tells_no_version_harms_nothing(rank: Rank, body: str) -> None:
    assert told_by(rank, make_library(rank.folder / "libnccl.so.2", body)) == ()
    assert rank.read().step_count == 1


def test_more_versions_than_there_is_room_for_are_cut(rank: Rank) -> None:
    libraries = [
        make_nccl(rank.folder / str(minor), 20000 + minor * 100) for minor in range(20, 12, -1)
    ]

    assert told_by(rank, *libraries) == ("2.13.0", "2.14.0", "2.15.0", "2.16.0")


def test_versions_are_told_before_a_process_group_that_they_end(rank: Rank) -> None:
    package = rank.folder / "lib" / "torch" / "distributed"
    package.mkdir(parents=True)
    library = make_nccl(rank.folder, 22703)
    (package.parent / "__init__.py").write_text(f"import ctypes\nctypes.CDLL({str(library)!r})\n")
    (package / "__init__.py").write_text("from .distributed_c10d import *")
    (package / "distributed_c10d.py").write_text(
        "def init_process_group(backend):\n    raise RuntimeError('Mismatched NCCL version detected')\n"
        "def destroy_process_group():\n    pass\n"
    )
    rank.environment = {layout.ENV_AUTO: "1", "PYTHONPATH": f"{rank.site}:{package.parent.parent}"}

    said = rank.run(
        sys.executable,
        """
        import rankmend
        rankmend.attach()
        import torch.distributed as dist
        try:
            dist.init_process_group("nccl")
        except RuntimeError as error:
            print(error)
        """,
    )

    assert said == "Mismatched NCCL version detected\n"
    assert rank.read().nccl == ("2.27.3",)


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed")
def test_an_unchanged_script_tells_it_at_its_first_step(rank: Rank) -> None:
    rank.environment = {layout.ENV_AUTO: "1"}
    library = make_nccl(rank.folder, 22703)

    rank.run(
        sys.executable,
        f"""
        import ctypes, torch
        ctypes.CDLL({str(library)!r})
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _step in range(3):
            weight.sum().backward()
            optimizer.step()
        """,
    )

    assert rank.read().nccl == ("2.27.3",)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed")
def test_a_container_tells_of_its_own_library_and_not_the_hosts(rank: Rank) -> None:
    outside = make_nccl(rank.folder / "host", 22105)
    make_nccl(rank.folder / "image", 22703)
    mount = shlex.split("bwrap --dev-bind / / --unshare-pid --proc /proc --die-with-parent --bind")
    # In there the path of the host's library leads to the image's.
    command = [*mount, str(rank.folder / "image"), str(outside.parent)]
    code = STEP.format(paths=[str(outside)])

    done = subprocess.run(
        [*command, *rank.command(sys.executable, code)],
        env=rank.variables(),
        cwd=rank.folder,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )

    if "Operation not permitted" in done.stderr or "No permissions" in done.stderr:
        pytest.skip(f"bwrap may make no namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert rank.read().nccl == ("2.27.3",)


def test_a_later_rank_in_the_same_file_does_not_inherit_it(rank: Rank) -> None:
    assert told_by(rank, make_nccl(rank.folder, 22703)) == ("2.27.3",)
    assert told_by(rank) == ()


@pytest.mark.parametrize(
    ("code", "version"),
    [(22703, "2.27.3"), (21005, "2.10.5"), (20906, "2.9.6"), (2804, "2.8.4"), (2301, "2.3.1")],
)
def test_numbers_are_read_as_nccl_makes_them(code: int, version: str) -> None:
    assert nccl_version(code) == version


def test_an_impossible_number_in_the_file_is_refused(rank: Rank) -> None:
    import zlib

    body = layout.NCCL.pack(22703, 0xFFFFFFFF, 0, 0)
    with rank.path.open("r+b") as file:
        file.seek(layout.NCCL_AT)
        file.write(body + layout.CRC.pack(zlib.crc32(body)))

    with pytest.raises(SourceError, match="impossible versions of NCCL"):
        rank.reader.read(time.monotonic())


def test_the_block_lies_in_its_gap() -> None:
    end = layout.NCCL_AT + layout.NCCL.size + layout.CRC.size
    assert layout.PLACE_AT + layout.PLACE.size + layout.CRC.size <= layout.NCCL_AT
    assert end <= layout.RING_AT
