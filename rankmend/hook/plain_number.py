"""Reads a loss or a gradient norm as a float, if that costs no wait for a device.

Asks for types alone, and runs no code of the script's classes: it could raise anything.
"""

import sys


def plain_number(value):
    """Return ``value`` as a float, or None where it is no number, or one that lies on a device.

    Reading such a one, or a tensor that several ranks share, would wait for work that the script
    has not waited for.
    """
    kind = type(value)
    try:
        if issubclass(kind, float):
            return float.__float__(value)
        if issubclass(kind, int):
            return int.__float__(value)
        if _is_numpy_number(kind) and value.ndim == 0:
            return float(value)
        if _is_cpu_tensor(kind, value):
            return float(value.item())
    except (TypeError, ValueError, OverflowError, RuntimeError, AttributeError):
        pass
    return None


def _is_numpy_number(kind):
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, (numpy.ndarray, numpy.floating, numpy.integer))


def _is_cpu_tensor(kind, value):
    torch = sys.modules.get("torch")
    if torch is None or kind not in (torch.Tensor, torch.nn.Parameter):
        return False  # a DTensor would talk to other ranks
    return value.device.type == "cpu" and value.numel() == 1


def describe(value):
    """Return what a refused value is, for people."""
    kind = type(value)
    text = "%s.%s" % (kind.__module__, kind.__name__)
    try:
        device = getattr(value, "device", None)
        return text if device is None else "%s on %s" % (text, device)
    except Exception:
        return text
