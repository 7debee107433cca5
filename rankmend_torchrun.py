"""The entry point of the group `torchrun.handlers` of PyTorch (`recovery.launcher.torchrun.handler` does the work).

Every process that imports torch.distributed.elastic loads this module, training scripts among them, also where another
backend is chosen. So it lies outside the package: `import rankmend` belongs to the script, at the script's own time.
Standard library only, and next to nothing of it.
"""

from typing import Any


def get_handler() -> Any:
    """Return what makes a handler from torchrun's `RendezvousParameters`."""
    return _create_handler


def _create_handler(parameters: Any) -> Any:
    from importlib import import_module  # noqa: PLC0415 - only where this backend is chosen

    from rankmend.parts_path import put_on_path  # noqa: PLC0415

    put_on_path()
    return import_module("recovery.launcher.torchrun.handler").create_handler(parameters)
