"""What a checkpoint's content says of its kind: its step, its epoch, its tensors, an optimizer's state.

It is read from what `pickle_stream` has listed, from names of an npz file's members, or from the header of
safetensors. Nothing is unpickled, and the work is bounded: a content of more values than VALUES_MAX is
`Holds.UNKNOWN`.

Sources: `torch.optim.Optimizer.state_dict` has `state` and `param_groups`. Names of steps: nanoGPT `iter_num`;
fairseq `optimizer_history[-1].num_updates`; composer `state.timestamp.batch`; mmengine `meta.iter`; detectron2 and
fvcore `iteration`; Lightning `global_step`.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from recovery.checkpoints.files.pickle_stream import STEPS_END, Opaque, step_in
from recovery.messages.candidates import Holds, Shape

VALUES_MAX: Final = 1_000_000  # 10,000 tensors with Adam are 400,000 values, 0.3 s
_PATH_MAX: Final = 200  # letters of the names that lead to a tensor
_DEPTH_MAX: Final = 12  # a pickled module nests two levels for each of its own
_ALWAYS: Final = (
    *("global_step", "iter_num", "num_updates", "global_iter", "global_iteration"),
    *("train_step", "current_iteration", "current_iter"),
)
# These may count within an epoch where the content also has one.
_ALONE: Final = ("step", "iteration", "iter", "current_step", "n_iter", "num_steps", "steps")
_EPOCHS: Final = ("epoch", "current_epoch", "cur_epoch", "epoch_num", "epochs_run", "epochs")
# Where frameworks and scripts put their counters, other than at the top.
_INNER: Final = (
    *("meta", "trainer_state", "train_state", "training_state", "trainer", "progress"),
    *("extra_state", "counters", "metadata"),
)
_WORDS: Final = re.compile(r"[a-z]+")
_OPTIMIZERS: Final = frozenset({"opt", "opts", "adam", "adamw", "sgd"})
_BUFFERS: Final = frozenset({"exp_avg", "exp_avg_sq", "momentum_buffer"})
# Of names that also mean something else, both say it: Adam's moments, Optax's; `mu` and `sigma` are statistics.
_MOMENTS: Final = (("m", "v"), ("v", "m"), ("mu", "nu"), ("nu", "mu"))
# Of an optimizer, but not its state.
_NO_STATE: Final = frozenset(
    {"config", "cfg", "args", "name", "kwargs", "class", "type", "history", "hparams", "lr", "step"}
)
_MODELS: Final = re.compile(
    r"model|state_dict|net|module|weights|params|generator|discriminator|encoder|decoder|student|policy"
)
# Of a tensor in a state_dict: a path of modules, or what PyTorch's modules and scripts call a parameter.
_PARAMETER: Final = re.compile(
    r"\.|(?:weights?|bias|kernel|scale|gamma|beta|theta|phi|lora_.*)$|(?:^|[/_])[wb][a-z]?_?[0-9]*$"
)
_RANDOM: Final = frozenset({"rng", "random", "seed"})
_TENSOR: Final = re.compile(r"\S+ _rebuild_(?:tensor|qtensor|sparse|nested|device)\w*")
_ARRAY: Final = re.compile(r"numpy\.\S+ _reconstruct")
_COUNTERS: Final = frozenset({"step", "epoch", "iteration", "iter", "global_step"})


def counters_in(content: Any) -> tuple[int | None, int | None]:
    """Return the step and the epoch that a torch.save file tells; a step in the epoch is none."""
    epoch = step_in(content, *_EPOCHS)
    step = step_in(content, *_ALWAYS, *(() if epoch is not None else _ALONE))
    if step is not None:
        return step, epoch
    items = _items(content)
    for key in _INNER:
        inner = items.get(key)
        inner_epoch = step_in(inner, *_EPOCHS)
        # mmengine counts `iter` over all epochs.
        alone = ("iter",) if key == "meta" else () if inner_epoch is not None or epoch else _ALONE
        step = step_in(inner, *_ALWAYS, *alone)
        epoch = inner_epoch if epoch is None else epoch
        if step is not None:
            return step, epoch
    history = items.get("optimizer_history")
    if isinstance(history, list) and history:
        step = step_in(history[-1], "num_updates")
    if step is None:
        times = _items(_items(items.get("state")).get("timestamp"))
        times = _items(times.get("Timestamp")) or times
        step = step_in(times, "batch")
        epoch = step_in(times, "epoch") if epoch is None else epoch
        if step is None:
            step = step_in(times.get("batch"), "value")
    return step, epoch


def shape_of_content(content: Any, epoch: int | None = None) -> Shape:
    """Return the shape of what a torch.save file holds."""
    counts = _Counts()
    if not counts.take(content):
        return Shape(epoch=epoch)
    if counts.tensors and not (counts.has_parameters or counts.has_optimizer):
        return Shape(Holds.VALUES, counts.tensors, counts.elements, epoch)  # `features`, `labels`
    has_model = counts.tensors > 0 or any(
        isinstance(key, str) and _MODELS.search(key.lower()) and _is_container(value)
        for key, value in _items(content).items()
        if not _is_optimizer_key(key)
    )
    return Shape(_holds(has_model, counts.has_optimizer), counts.tensors, counts.elements, epoch)


def shape_of_arrays(sizes_bytes: Mapping[str, int], *, has_step: bool) -> Shape:
    """Return the shape of an npz file from the names and sizes of its arrays."""
    names = [name for name in sizes_bytes if name.lower() not in _COUNTERS]
    retained = [name for name in names if not _is_buffer(name, sizes_bytes)]
    is_model = has_step or len(retained) < len(names)
    holds = _holds(is_model and bool(retained), len(retained) < len(names))
    return Shape(holds, len(retained), sum(sizes_bytes[name] for name in retained))


def shape_of_tensors(shapes: Mapping[str, Iterable[int]]) -> Shape:
    """Return the shape of a safetensors file from the names and shapes of its tensors."""
    retained = [name for name in shapes if not _is_buffer(name, shapes)]
    elements = sum(math.prod(shapes[name]) for name in retained)
    has_optimizer = len(retained) < len(shapes)
    has_model = any(_is_parameter(name.lower()) for name in retained) or (
        has_optimizer and bool(retained)
    )
    return Shape(_holds(has_model, has_optimizer), len(retained), elements)


def joined_shape(shapes: Iterable[Shape]) -> Shape:
    """Return the shape of a save whose files have these."""
    known = [shape for shape in shapes if shape.holds is not Holds.UNKNOWN]
    if not known:
        return Shape()
    kinds = {shape.holds for shape in known}
    has_model = bool(kinds & {Holds.STATE, Holds.MODEL})
    has_optimizer = bool(kinds & {Holds.STATE, Holds.OPTIMIZER})
    return Shape(
        _holds(has_model, has_optimizer),
        sum(shape.tensors for shape in known),
        sum(shape.elements for shape in known),
        max((shape.epoch for shape in known if shape.epoch is not None), default=None),
    )


def _holds(has_model: bool, has_optimizer: bool) -> Holds:
    if has_optimizer:
        return Holds.STATE if has_model else Holds.OPTIMIZER
    return Holds.MODEL if has_model else Holds.VALUES


class _Counts:
    """Walks through a content once, without recursion: values may be shared and nested."""

    def __init__(self) -> None:
        self.tensors = self.elements = 0
        self.has_optimizer = False
        self.has_parameters = False  # by their names, or by that of what they lie in

    def take(self, content: Any) -> bool:
        """Return whether all of it was seen."""
        if _is_optimizer_state(content):
            self.has_optimizer = True
            return True
        seen: set[int] = set()
        values = 0
        # value, depth, the names that lead to it, whether it belongs to the model
        pending: list[tuple[Any, int, str, bool]] = [(content, 0, "", True)]
        while pending:
            value, depth, name, is_model = pending.pop()
            values += 1
            if values > VALUES_MAX:
                return False
            if id(value) in seen or depth > _DEPTH_MAX:
                continue
            seen.add(id(value))
            shape = _tensor_shape(value)
            if shape is not None:
                if name and is_model and shape:  # a number as a tensor is no weight
                    self.tensors += 1
                    self.elements += math.prod(shape)
                    self.has_parameters = self.has_parameters or _is_parameter(name)
                continue
            for key, child in _children(value):
                if not _is_container(child):
                    continue
                is_state = key is not None and _is_state(key, child, depth)
                self.has_optimizer |= is_state
                names = set() if key is None else set(_WORDS.findall(key.lower()))
                belongs = is_model and not is_state and _RANDOM.isdisjoint(names)
                path = name if key is None else f"{name[-_PATH_MAX:]}/{key.lower()}"
                pending.append((child, depth + 1, path, belongs))
        return True


def _is_parameter(path: str) -> bool:
    return _PARAMETER.search(path) is not None or _MODELS.search(path) is not None


def _children(value: Any) -> Iterator[tuple[str | None, Any]]:
    if isinstance(value, Opaque):
        for child in (value.args, value.state):
            if _is_container(child):
                yield None, child
    if isinstance(value, list | tuple):
        for child in value:
            yield None, child
    for key, child in _items(value).items():
        yield (key if isinstance(key, str) else None), child


def _is_state(key: str, value: Any, depth: int) -> bool:
    if depth > 5:
        return False
    is_moment = key in {"mu", "nu"} and _tensor_shape(value) is None  # a tree of tensors
    if _is_optimizer_state(value) or key in _BUFFERS or is_moment:
        return True
    return _is_optimizer_key(key) and value != []


def _is_optimizer_state(value: Any) -> bool:
    items = _items(value)
    return "param_groups" in items and "state" in items


def _is_optimizer_key(key: Any) -> bool:
    if not isinstance(key, str):
        return False
    words = _WORDS.findall(key.lower())
    is_its = any("optim" in word or word in _OPTIMIZERS for word in words)
    return is_its and _NO_STATE.isdisjoint(words)


def _is_buffer(name: str, names: Iterable[str]) -> bool:
    """Return whether the array of this name is an optimizer's: `opt/w`, `m_w` beside `v_w`."""
    words = re.findall(r"[a-z]+(?:_[a-z]+)*", name.lower())
    if _is_optimizer_key(name) or not _BUFFERS.isdisjoint(words):
        return True
    for first, second in _MOMENTS:
        other = re.sub(rf"(^|[_./]){first}(?=[_./]|$)", rf"\1{second}", name)
        if name not in (other, first) and other in names:
            return True
    return False


def _tensor_shape(value: Any) -> tuple[int, ...] | None:
    """Return the sizes of a tensor or an array, None where it is neither."""
    if not isinstance(value, Opaque):
        return None
    shape = None
    if _TENSOR.fullmatch(value.name) and isinstance(value.args, tuple) and len(value.args) > 2:
        shape = value.args[2]
    elif _ARRAY.fullmatch(value.name) and isinstance(value.state, tuple) and len(value.state) > 1:
        shape = value.state[1]
    if not isinstance(shape, tuple):
        return None
    return tuple(size for size in shape if isinstance(size, int) and 0 <= size < STEPS_END)


def _items(value: Any) -> Mapping[Any, Any]:
    found = value.items if isinstance(value, Opaque) else value
    return found if isinstance(found, dict) else {}


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | Opaque)
