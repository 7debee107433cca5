"""The random states of this process, as values that a snapshot can keep. Only libraries that are imported are asked."""

import sys


def take():
    """Return the states of Python, numpy's global generator, torch, and the accelerator that this rank uses."""
    states = {}
    random = sys.modules.get("random")
    if random is not None:
        states["python"] = random.getstate()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        for name in ("cuda", "xpu"):
            device = getattr(torch, name, None)
            if device is not None and device.is_initialized():
                states[name] = device.get_rng_state()
    return states


def give_back(states):
    """Set what `take` returned. Raises for anything else, and where a library of it is not imported."""
    if not isinstance(states, dict):
        raise TypeError("random states are a dict, not %s" % type(states).__name__)
    for name, state in states.items():
        setter = _setters.get(name)
        if setter is None:
            raise ValueError("no random state is named %.40r" % (name,))
        setter(state)


def _module(name):
    module = sys.modules.get(name)
    if module is None:
        raise ValueError("import %s before you set its random state" % name)
    return module


def _set_python(state):
    _module("random").setstate(state)


def _set_numpy(state):
    _module("numpy").random.set_state(state)


def _set_torch(state):
    _module("torch").set_rng_state(state)


def _set_cuda(state):
    _module("torch").cuda.set_rng_state(state)


def _set_xpu(state):
    _module("torch").xpu.set_rng_state(state)


_setters = {
    "python": _set_python,
    "numpy": _set_numpy,
    "torch": _set_torch,
    "cuda": _set_cuda,
    "xpu": _set_xpu,
}
