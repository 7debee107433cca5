"""Kernels that the GPU report has the driver compile, with a stand-in for libcuda: what the driver is handed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.fault_worker import REFUSED
from tests.support.agent import ROOT

pytestmark = pytest.mark.process

# Says what it is asked. A module is the text, a function the text from its name on.
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int cuModuleLoadData(void **module, const void *image) { *module = strdup(image); return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    char entry[64];
    snprintf(entry, sizeof entry, ".visible .entry %s(", name);
    *function = strstr(module, entry);
    return *function ? 0 : 500;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    printf("%.20s %u%u%u %u%u%u %u %p %llu %d\n", (char *)function, gx, gy, gz, bx, by, bz, shared, stream,
           *(unsigned long long *)parameters[0], extra != NULL);
    fflush(stdout);
    return getenv("REFUSES") ? 719 : 0;
}
"""
SPIN = """
from types import SimpleNamespace
from bench.gpu.device import Gpu

gpu = object.__new__(Gpu)  # its stream alone: there is no device here
gpu.torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=0x7F0000001230)))
gpu._by_driver()(12.5)
"""
MISBEHAVE = """
from bench.gpu.fault_worker import launch

class Data:
    def data_ptr(self):
        return 4096
    def __getitem__(self, _place):
        return self

launch("{}", Data())
"""
POKE = "from bench.gpu.bad_kernel import write_to_nowhere; write_to_nowhere()"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libcuda")
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler to build the stand-in for libcuda with")
    (folder / "cuda.c").write_text(DRIVER)
    options = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", "libcuda.so.1", "cuda.c"]
    subprocess.run([compiler, *options], cwd=folder, check=True)
    return folder


def run(code: str, library: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(ROOT), **more}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_spin_is_one_thread_on_the_current_stream_and_counts_nanoseconds(driver: Path) -> None:
    done = run(SPIN, driver)

    assert done.stdout == ".visible .entry spin 111 111 0 0x7f0000001230 12500000 0\n", done.stderr


def test_bad_kernel_writes_to_nowhere_on_the_default_stream(driver: Path) -> None:
    done = run(POKE, driver)

    assert done.stdout == ".visible .entry poke 111 111 0 (nil) 16 0\n", done.stderr


@pytest.mark.parametrize("name", ["read_far", "read_misaligned", "trap_always", "run_forever"])
def test_kernel_that_misbehaves_is_found_and_gets_the_address_of_its_data(
    driver: Path, name: str
) -> None:
    done = run(MISBEHAVE.format(name), driver)

    start = f".visible .entry {name}("[:20]
    assert done.stdout == f"{start} 111 111 0 (nil) 4096 0\n", done.stderr


def test_rank_whose_kernel_the_driver_does_not_take_says_so_by_its_exit_code(driver: Path) -> None:
    done = run(MISBEHAVE.format("read_fa"), driver)

    assert done.returncode == REFUSED
    assert done.stderr == "cuModuleGetFunction returned 500\n"


def test_kernel_that_the_driver_refuses_is_an_error(driver: Path) -> None:
    done = run(POKE, driver, REFUSES="1")

    assert "cuLaunchKernel returned 719" in done.stderr
