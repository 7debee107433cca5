"""Counts the optimizer steps of an unchanged PyTorch script.

`watch` waits for `torch.optim.optimizer` to be imported and then adds a global optimizer hook
(register_optimizer_step_post_hook, PyTorch 2.0 and later). A training step may step several
optimizers (a GAN's two, one for each layer): it ends when one steps that has stepped in it
already, so that each training step counts once, and counting goes on when a script changes to
another optimizer. The number of the first step is the optimizer's own where it keeps one (the
Adam family's state["step"], which a checkpoint restores); else steps count from the start of
the process and are marked relative.

Not every step trains. PyTorch's distributed checkpoints fill an empty optimizer by a step with
zero gradients and a learning rate of 0 before they load it: that one does not count. A script may
make steps of its own before it loads (a warm-up, a check of shapes): where the attempt has a
checkpoint to begin from, the first steps of a fresh optimizer are held back for a moment, and a
load drops them. After any load the optimizer's own number counts again.
"""

import atexit
import os
import sys
from time import monotonic_ns

import rankmend
from rankmend.hook import layout, nccl, new_modules
from rankmend.hook.on_import import when_imported
from rankmend.hook.own_errors import OWN_ERRORS
from rankmend.hook.torch_sections import Installer

_MODULE = "torch.optim.optimizer"
_OPTIMIZERS_MAX = 100000  # stepped in one training step; more: a new one is made for each
_STATES_MAX = 64  # parameters looked at: each may cost a copy from the device (10 us)
# Functions of PyTorch that step an optimizer only to fill its state: torch.distributed.checkpoint's
# state_dict.py, and torch.distributed.optim's _NamedOptimizer.
_FILLERS = ("_init_optim_state", "init_state")
# Held back in an attempt that has a checkpoint to load: CUDA graphs are warmed up with 3 to 11 steps.
_HELD_MAX = 16
_HELD_NS_MAX = 2 * 10**9  # from the first to the last; a loop that trains is reported soon
_FRAMES_MAX = 12  # looked through for one of them: a step goes through 3 or 4 wrappers
_counting = True
_is_known_ahead = False  # in a forked rank: a module that its server imported holds rankmend


def look_ahead():
    """Look at each module, in the fork server: its ranks look at new ones only."""
    global _is_known_ahead
    _is_known_ahead = _is_known_to_modules()


def stop_counting():
    global _counting
    _counting = False


def watch():
    """Count steps as soon as this process imports torch.optim."""
    when_imported(_MODULE, _register)


def _register(module):
    try:
        register = module.register_optimizer_step_post_hook
        # One that can't attach now may be a rank that the script has started: that shows at its first step.
        if _counting and (
            rankmend._attach(layout.FLAG_AUTO) or os.environ.get(layout.ENV_PROGRESS_FILE)
        ):
            counter = Counter(Installer())
            register(counter.after_step)
            atexit.register(counter.tell_held)
    except Exception:  # a script whose steps can't be counted trains as it would have
        pass


class NoInstaller:
    """Wraps nothing."""

    is_done = True


class Counter:
    def __init__(self, installer):
        """``installer``: wraps what the script has imported, at its first steps."""
        self._step = None  # number of the current training step; None before the first
        self._first = 1  # number of the first step that counts
        self._stepped = set()  # ids of the optimizers that stepped in it
        self._held_ns = []  # times of the first steps, which are not reported yet
        self._may_load = False  # a load may still drop these
        self._followed = set()  # ids of the optimizers whose loads we follow
        self._is_loaded = False  # an optimizer's state was loaded since its last step
        self._installer = installer

    def after_step(self, optimizer, _args, _kwargs):
        # Nothing to catch here: what comes by is a signal handler's, and so the script's.
        writer = rankmend._writer
        if writer is None:  # a child of a rank
            if not rankmend._attach_at_step(layout.FLAG_AUTO):
                return
            writer = rankmend._writer
        if not self._installer.is_done:
            self._installer.look()
        if not _counting:
            return
        key = id(optimizer)
        if key not in self._followed:
            self._follow(optimizer, key)
        if _is_filling(optimizer):
            return
        if self._is_loaded:
            self._is_loaded = False
            self._take_load(writer, optimizer)
        if self._step is None:
            self._stepped = {key}
            self._begin(writer, optimizer)
            return
        if key not in self._stepped and len(self._stepped) < _OPTIMIZERS_MAX:
            self._stepped.add(key)
            return
        self._step += 1
        self._stepped = {key}
        if self._held_ns:
            if self._may_load and self._hold():
                return
            self._tell_held(writer)
        writer.step(self._step)

    # A script may have its optimizer's step compiled: not to be traced into, which would fail.
    # torch.compiler.disable sets the same, and costs a second, because it imports the compiler.
    after_step._torchdynamo_disable = True  # type: ignore[attr-defined]
    after_step._torchdynamo_disable_msg = None  # type: ignore[attr-defined]

    def _begin(self, writer, optimizer):
        """Report the first step, or hold it back if the script may report it itself.

        The optimizer steps before the script can say so: a step told by both would count twice,
        and with another number.
        """
        nccl.tell(writer)
        known = _own_step(optimizer)
        self._step = self._first = known or 1
        self._is_relative = not known
        self._held_ns = [monotonic_ns()]
        self._may_load = self._step == 1 and bool(os.environ.get(layout.ENV_RESUME_PATH))
        if not (self._may_load or _is_known_to_script()):
            self._tell_held(writer)

    def _hold(self):
        """Hold back one more step, and return whether there was room and time for it."""
        now_ns = monotonic_ns()
        if len(self._held_ns) >= _HELD_MAX or now_ns - self._held_ns[0] > _HELD_NS_MAX:
            return False
        self._held_ns.append(now_ns)
        return True

    def tell_held(self):
        """Report the steps still held back when the process ends."""
        writer = rankmend._writer
        if writer is not None and _counting and self._held_ns:
            self._tell_held(writer)

    def _tell_held(self, writer):
        held_ns, self._held_ns = self._held_ns, []
        self._tell_flags(writer)
        for number, at_ns in enumerate(held_ns, self._first):
            writer.step_at(number, at_ns)
        rankmend._note_first_step()

    def _tell_flags(self, writer):
        relative = layout.FLAG_RELATIVE if self._is_relative else 0
        writer.set_flags(layout.FLAG_AUTO | relative)

    def _follow(self, optimizer, key):
        """Follow this optimizer's state loads; PyTorch 2.0 has no hook for them."""
        if len(self._followed) < _OPTIMIZERS_MAX:
            self._followed.add(key)
        try:
            optimizer.register_load_state_dict_post_hook(self._after_load)
        except OWN_ERRORS:
            pass

    def _after_load(self, _optimizer):
        self._is_loaded = True

    def _take_load(self, writer, optimizer):
        """Go on from where the loaded state is: called at the first step after a load."""
        if self._held_ns or self._step is None:  # nothing reported yet: this is the first step
            self._step, self._held_ns = None, []
            return
        known = _own_step(optimizer)
        if known is None:
            return
        self._step = known - 1
        if self._is_relative:
            self._is_relative = False
            self._tell_flags(writer)
        self._stepped = {id(optimizer)}


def _is_known_to_script():
    """Return whether a module that is not ours holds rankmend, or the main one a part of it."""
    parts = {id(value) for value in vars(rankmend).values() if callable(value)}
    parts.add(id(rankmend))
    if any(id(value) in parts for value in _names_in(sys.modules.get("__main__")).values()):
        return True
    return _is_known_ahead or _is_known_to_modules()


def _is_known_to_modules():
    return any(
        _names_in(module).get("rankmend") is rankmend
        for name, module in new_modules.find()
        if type(name) is str and name.partition(".")[0] != "rankmend"
    )


def _names_in(module):
    """Return a module's names, without running code of its own: a lazy one stays unloaded."""
    try:
        names = object.__getattribute__(module, "__dict__")
    except AttributeError:  # anything may stand in sys.modules
        return {}
    return names if isinstance(names, dict) else {}


def _is_filling(optimizer):
    """Return whether this step only fills the optimizer's state, with a learning rate of 0.

    A schedule may begin or end with such a rate, too, so that PyTorch must be seen to have called.
    Runs at each step: nothing is caught here that a signal handler may have raised.
    """
    groups = getattr(optimizer, "param_groups", None)
    if type(groups) is not list or not groups or type(groups[0]) is not dict:
        return False
    rate = groups[0].get("lr")
    if (rate != 0.0) if type(rate) is float else not _is_zero(rate):
        return False
    frame = sys._getframe(2)
    for _place in range(_FRAMES_MAX):
        if frame is None:
            return False
        if frame.f_code.co_name in _FILLERS:
            return True
        frame = frame.f_back
    return False


def _is_zero(rate):
    """Return whether a learning rate is 0 that is no float; one on a device is not waited for."""
    kind = getattr(getattr(rate, "device", None), "type", "cpu")
    if kind != "cpu" or _is_capturing():
        return False
    try:
        return float(rate) == 0.0
    except (TypeError, ValueError, RuntimeError):
        return False


def _own_step(optimizer):
    """Return how many steps the optimizer says it has made, this one included, or None.

    The most of any parameter's: one that was frozen at first has made fewer.
    """
    if _is_capturing():
        return None
    try:
        steps = [state["step"] for state in optimizer.state.values() if "step" in state]
        return max(int(step) for step in steps[:_STATES_MAX])  # tensors of one element, numbers
    except OWN_ERRORS:
        return None


def _is_capturing():
    """Return whether a CUDA graph is being captured: to read from the device would end that."""
    try:
        cuda = sys.modules["torch"].cuda
        return cuda.is_initialized() and cuda.is_current_stream_capturing()
    except OWN_ERRORS:
        return False
