"""Queries the ranks' own Python in a separate process, so that the launcher need not import torch."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankmend.errors import ConfigError, LaunchError

IMPORT_S_MAX: Final = 300.0  # with `import torch` from a cold network file system

_ERROR_CHARACTERS: Final = 500
_COUNT_SCRIPT: Final = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import torch
kind = sys.argv[1]
if kind == "auto":
    module = getattr(torch, "accelerator", torch.cuda)
else:
    module = getattr(torch, {"gpu": "cuda"}.get(kind, kind), None)
is_device = hasattr(module, "is_available") and hasattr(module, "device_count")
print("devices", module.device_count() if is_device and module.is_available() else 0)
"""

_PROCESSORS_MAX: Final = 1 << 16
_BINDING_SCRIPT: Final = """
import json, sys
sys.path[:] = [entry for entry in sys.path if entry]
from torch.numa import binding
options = binding.NumaOptions(affinity_mode=binding.AffinityMode(sys.argv[1]))
ask = binding._get_logical_cpus_to_bind_to
print(json.dumps([sorted(ask(gpu_index=i, numa_options=options)) for i in range(int(sys.argv[2]))]))
"""


@dataclass(frozen=True, slots=True)
class InterpreterAnswer:
    exit_code: int
    line: str  # the last line of its output: a user's sitecustomize may print, too
    error: str  # its stderr

    @property
    def words(self) -> list[str]:
        return self.line.split()


def ask_interpreter(
    python: str,
    script: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
) -> InterpreterAnswer:
    """Return the output of ``python`` running ``script``; raise LaunchError if it fails or takes too long."""
    try:
        done = subprocess.run(
            [python, "-c", script, *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(str(error)) from error
    line = done.stdout.strip().rpartition("\n")[2]
    return InterpreterAnswer(done.returncode, line, done.stderr.strip())


def count_devices(
    python: str, environment: Mapping[str, str], kind: str, timeout_s: float = IMPORT_S_MAX
) -> int:
    """Return how many devices of a kind (gpu, xpu, npu ... or auto) the torch of ``python`` sees, by torchrun's rules."""
    try:
        reported = ask_interpreter(python, _COUNT_SCRIPT, [kind], environment, timeout_s)
    except LaunchError as error:
        raise LaunchError(f"can't query the devices of {python}: {error}") from error
    words = reported.words
    if (
        reported.exit_code != 0
        or len(words) != 2
        or words[0] != "devices"
        or not words[1].isdigit()
    ):
        said = reported.error[-_ERROR_CHARACTERS:]
        raise LaunchError(
            f"can't query the devices of {python}: exit code {reported.exit_code}: {said}"
        )
    return int(words[1])


def read_bindings(
    python: str, environment: Mapping[str, str], mode: str, count: int
) -> tuple[tuple[int, ...], ...]:
    """Return the processors of each local rank for --numa-binding; a rank's GPU is the one of the same number.

    torchrun calls the same functions (torch/numa/binding.py, 2.9 and later) and wraps each rank in
    numactl. We call them once, in a separate process, because importing torch takes seconds that no
    restart should cost; the guardian then binds each rank as it forks it.
    """
    what = f"--numa-binding {mode}: can't query the PyTorch of {python}"
    try:
        reported = ask_interpreter(
            python, _BINDING_SCRIPT, [mode, str(count)], environment, IMPORT_S_MAX
        )
    except LaunchError as error:
        raise ConfigError(f"{what}: {error}") from error
    if reported.exit_code != 0:
        last = (reported.error.splitlines() or [f"exit code {reported.exit_code}"])[-1]
        raise ConfigError(f"{what}: {last} (it takes PyTorch 2.9 or later and NVIDIA GPUs)")
    try:
        found = json.loads(reported.line)
        bindings = tuple(tuple(int(number) for number in rank) for rank in found)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{what}: it answered {reported.line[-200:]!r}") from error
    numbers = [number for rank in bindings for number in rank]
    if len(bindings) != count or not all(bindings) or not _are_processors(numbers):
        raise ConfigError(f"{what}: it answered {bindings!r} for {count} ranks")
    return bindings


def _are_processors(numbers: list[int]) -> bool:
    return all(0 <= number < _PROCESSORS_MAX for number in numbers)
