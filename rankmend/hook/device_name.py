"""The name of the accelerator that this rank trains on, as PyTorch has it. Initialises none."""

import sys


def device_name():
    """Return the name of the current device, such as ``NVIDIA H200``; "" where there is none yet."""
    try:
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized():
            return ""
        return str(cuda.get_device_name(cuda.current_device()))
    except Exception:
        return ""
