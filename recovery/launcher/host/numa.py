"""--numa-binding: on which processors each rank runs, as the ranks' own PyTorch chooses them.

torchrun calls the same functions (torch/numa/binding.py, 2.9 and later) and wraps each rank in numactl. We
call them once, in a separate process, because importing torch takes seconds that no restart should
cost; the guardian then binds each rank as it forks it.
"""

import json
from collections.abc import Mapping
from typing import Final

from rankmend.errors import ConfigError, LaunchError
from recovery.launcher.host.interpreter import IMPORT_S_MAX, ask_interpreter

_PROCESSORS_MAX: Final = 1 << 16
_ASK: Final = """
import json, sys
sys.path[:] = [entry for entry in sys.path if entry]
from torch.numa import binding
options = binding.NumaOptions(affinity_mode=binding.AffinityMode(sys.argv[1]))
ask = binding._get_logical_cpus_to_bind_to
print(json.dumps([sorted(ask(gpu_index=i, numa_options=options)) for i in range(int(sys.argv[2]))]))
"""


def read_bindings(
    python: str, environment: Mapping[str, str], mode: str, count: int
) -> tuple[tuple[int, ...], ...]:
    """Return the processors of each local rank, whose GPU is the one of the same number."""
    what = f"--numa-binding {mode}: can't ask the PyTorch of {python}"
    try:
        told = ask_interpreter(python, _ASK, [mode, str(count)], environment, IMPORT_S_MAX)
    except LaunchError as error:
        raise ConfigError(f"{what}: {error}") from error
    if told.exit_code != 0:
        last = (told.error.splitlines() or [f"exit code {told.exit_code}"])[-1]
        raise ConfigError(f"{what}: {last} (it takes PyTorch 2.9 or later and NVIDIA GPUs)")
    try:
        found = json.loads(told.line)
        bindings = tuple(tuple(int(number) for number in rank) for rank in found)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{what}: it answered {told.line[-200:]!r}") from error
    numbers = [number for rank in bindings for number in rank]
    if len(bindings) != count or not all(bindings) or not _are_processors(numbers):
        raise ConfigError(f"{what}: it answered {bindings!r} for {count} ranks")
    return bindings


def _are_processors(numbers: list[int]) -> bool:
    return all(0 <= number < _PROCESSORS_MAX for number in numbers)
