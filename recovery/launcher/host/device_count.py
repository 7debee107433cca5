"""Counts the accelerators that the ranks' PyTorch sees, of any vendor, by torchrun's rules."""

from collections.abc import Mapping
from typing import Final

from rankmend.errors import LaunchError
from recovery.launcher.host.interpreter import IMPORT_S_MAX, ask_interpreter

_SAID_CHARACTERS: Final = 500
_ASK: Final = """
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


def count_devices(
    python: str, environment: Mapping[str, str], kind: str, timeout_s: float = IMPORT_S_MAX
) -> int:
    """Return how many devices of a kind (gpu, xpu, npu ... or auto) the torch of ``python`` sees."""
    try:
        told = ask_interpreter(python, _ASK, [kind], environment, timeout_s)
    except LaunchError as error:
        raise LaunchError(f"can't ask {python} for its devices: {error}") from error
    words = told.words
    if told.exit_code != 0 or len(words) != 2 or words[0] != "devices" or not words[1].isdigit():
        said = told.error[-_SAID_CHARACTERS:]
        raise LaunchError(f"can't ask {python} for its devices: exit code {told.exit_code}: {said}")
    return int(words[1])
