"""How many accelerators the ranks' own PyTorch sees: any vendor's, by the rules of torchrun."""

import subprocess
from collections.abc import Mapping
from typing import Final

from rankmend.errors import LaunchError

ASK_S_MAX: Final = 300.0  # with `import torch` from a cold network file system
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
    python: str, environment: Mapping[str, str], kind: str, timeout_s: float = ASK_S_MAX
) -> int:
    """Return how many devices of a kind (gpu, xpu, npu ... or auto) the torch of ``python`` sees."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK, kind],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"can't ask {python} for its devices: {error}") from error
    words = done.stdout.strip().rpartition("\n")[2].split()  # a sitecustomize may print, too
    if done.returncode != 0 or len(words) != 2 or words[0] != "devices" or not words[1].isdigit():
        said = done.stderr.strip()[-_SAID_CHARACTERS:]
        raise LaunchError(
            f"can't ask {python} for its devices: exit code {done.returncode}: {said}"
        )
    return int(words[1])
