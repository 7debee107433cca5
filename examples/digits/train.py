"""Trains a classifier of handwritten digits on several ranks, with numpy alone.

    python examples/digits/prepare.py digits.npz
    rankmend run --standalone --nproc-per-node 4 --checkpoint-dir checkpoints \\
        examples/digits/train.py --data digits.npz --checkpoint-dir checkpoints

Data-parallel: every rank computes gradients on its part of each batch, and `ring.Ring` sums
them. Which images a batch holds follows from the seed and the step, and sums are taken in rank
order, so a run that was interrupted and resumed ends with the bits of one that was not.
Lines with `rankmend` are all that the script does for rankmend; without `rankmend run` they do
nothing, and the script trains on one rank.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by numpy's BLAS: the ranks share the cores

import argparse
import hashlib
import itertools
import json
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ring import Ring

import rankmend

PIXELS = 64
DIGITS = 10
KEPT_CHECKPOINTS = 3


@dataclass(frozen=True, slots=True)
class Settings:
    data: Path
    checkpoint_dir: Path
    result: Path | None  # where rank 0 writes what came out, as JSON
    steps: int
    batch: int  # images a step, over all ranks
    hidden: int  # width of the two hidden layers
    learning_rate: float
    momentum: float
    seed: int
    checkpoint_every: int
    print_every: int
    timeout_s: float  # for another rank, at most


def read_settings() -> Settings:
    parser = argparse.ArgumentParser(description="Train on handwritten digits.")
    parser.add_argument("--data", type=Path, required=True, help="file that prepare.py wrote")
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-every", type=int, default=25)
    parser.add_argument("--print-every", type=int, default=25)
    parser.add_argument("--timeout-s", type=float, default=60.0)
    return Settings(**vars(parser.parse_args()))


class Model:
    """A network with two hidden layers, its parameters and momentum in one vector each."""

    def __init__(self, settings: Settings) -> None:
        widths = [PIXELS, settings.hidden, settings.hidden, DIGITS]
        self._shapes = list(itertools.pairwise(widths))
        size = sum(rows * columns + columns for rows, columns in self._shapes)
        self.parameters = np.zeros(size, np.float32)
        self.momentum = np.zeros(size, np.float32)
        self._layers = self._split(self.parameters)
        generator = np.random.default_rng(settings.seed)
        for (weights, _bias), (rows, _columns) in zip(self._layers, self._shapes, strict=True):
            weights[:] = generator.standard_normal(weights.shape) * np.sqrt(2 / rows)

    def _split(self, vector: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return views of each layer's weights and bias in ``vector``."""
        layers, start = [], 0
        for rows, columns in self._shapes:
            middle, end = start + rows * columns, start + rows * columns + columns
            layers.append((vector[start:middle].reshape(rows, columns), vector[middle:end]))
            start = end
        return layers

    def _forward(self, images: np.ndarray) -> list[np.ndarray]:
        """Return the input and the output of every layer, the last as log-probabilities."""
        outputs = [images]
        for weights, bias in self._layers[:-1]:
            outputs.append(np.maximum(outputs[-1] @ weights + bias, 0))
        weights, bias = self._layers[-1]
        scores = outputs[-1] @ weights + bias
        scores -= scores.max(axis=1, keepdims=True)
        outputs.append(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))
        return outputs

    def gradients(self, images: np.ndarray, labels: np.ndarray, into: np.ndarray) -> float:
        """Write the summed gradients of these images to ``into`` and return their summed loss."""
        outputs = self._forward(images)
        each = np.arange(len(labels))
        loss = -float(outputs[-1][each, labels].sum())
        error = np.exp(outputs[-1])
        error[each, labels] -= 1
        layers = self._split(into)
        for number in reversed(range(len(self._layers))):
            weights, bias = layers[number]
            np.matmul(outputs[number].T, error, out=weights)
            np.sum(error, axis=0, out=bias)
            if number:
                error = (error @ self._layers[number][0].T) * (outputs[number] > 0)
        return loss

    def update(self, gradients: np.ndarray, settings: Settings) -> None:
        self.momentum *= np.float32(settings.momentum)
        self.momentum += gradients / np.float32(settings.batch)
        self.parameters -= np.float32(settings.learning_rate) * self.momentum

    def accuracy_ratio(self, images: np.ndarray, labels: np.ndarray) -> float:
        return float((self._forward(images)[-1].argmax(axis=1) == labels).mean())

    def sha256(self) -> str:
        return hashlib.sha256(self.parameters.tobytes()).hexdigest()


def save(folder: Path, step: int, model: Model) -> None:
    """Write a checkpoint whole or not at all, and drop the oldest ones."""
    path = folder / f"step-{step:08d}.npz"
    temporary = folder / f".{path.name}.{os.getpid()}"
    with temporary.open("wb") as file:
        np.savez(file, step=step, parameters=model.parameters, momentum=model.momentum)
        file.flush()
        os.fsync(file.fileno())
    if not rankmend.may_publish(path):  # a newer attempt of this job is running: not ours to write
        temporary.unlink()
        return
    temporary.replace(path)
    for old in sorted(folder.glob("step-*.npz"))[:-KEPT_CHECKPOINTS]:
        old.unlink()


def load(path: str, model: Model) -> int:
    """Read a checkpoint into ``model`` and return its step."""
    with np.load(path, allow_pickle=False) as checkpoint:
        model.parameters[:] = checkpoint["parameters"]
        model.momentum[:] = checkpoint["momentum"]
        return int(checkpoint["step"])


def batch_indices(settings: Settings, step: int, images: int) -> np.ndarray:
    """Return which images this step trains on, over all ranks."""
    generator = np.random.default_rng((settings.seed, step))
    return generator.choice(images, settings.batch, replace=False)


class StopFlag:
    """Set by SIGTERM: save at the end of a step and leave."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, _number: int, _frame: object) -> None:
        self.is_set = True


def train(settings: Settings, ring: Ring) -> None:
    """Train to the last step, or to the one at which all ranks agree to stop."""
    stop = StopFlag()
    chosen = rankmend.resume()
    with np.load(settings.data, allow_pickle=False) as data:
        images, labels = data["train_images"], data["train_labels"]
        test_images, test_labels = data["test_images"], data["test_labels"]
    model = Model(settings)
    step = 0 if chosen is None else load(chosen.path, model)
    # gradients, loss and stop flag go into one sum, so that all ranks see the same flag
    shared = np.zeros(len(model.parameters) + 2, np.float32)
    gradients, loss, stops = shared[:-2], shared[-2:-1], shared[-1:]
    while step < settings.steps and not stops[0]:
        step += 1
        with rankmend.section("io"):
            mine = batch_indices(settings, step, len(labels))[ring.rank :: ring.world_size]
            batch_images, batch_labels = images[mine], labels[mine]
        with rankmend.section("compute"):
            loss[0] = model.gradients(batch_images, batch_labels, gradients)
            stops[0] = stop.is_set
        with rankmend.section("communication"):
            ring.all_reduce(shared)
        with rankmend.section("compute"):
            model.update(gradients, settings)
        rankmend.step(step)
        if ring.rank != 0:
            continue
        is_last = step == settings.steps or stops[0] > 0
        if is_last or step % settings.checkpoint_every == 0:
            with rankmend.section("checkpoint"):
                save(settings.checkpoint_dir, step, model)
        if is_last or step % settings.print_every == 0:
            print(f"step {step:4d}  loss {loss[0] / settings.batch:.6f}", flush=True)
    if ring.rank == 0:
        result = {
            "step": step,
            "accuracy_ratio": model.accuracy_ratio(test_images, test_labels),
            "sha256": model.sha256(),
        }
        print(f"step {step}: accuracy {result['accuracy_ratio']:.4f}, sha256 {result['sha256']}")
        if settings.result is not None:
            settings.result.write_text(json.dumps(result) + "\n", encoding="ascii")


def main() -> None:
    settings = read_settings()
    settings.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    environment = os.environ
    with Ring(
        rank=int(environment.get("RANK", "0")),
        world_size=int(environment.get("WORLD_SIZE", "1")),
        address=environment.get("MASTER_ADDR", "127.0.0.1"),
        port=int(environment.get("MASTER_PORT", "29500")),
        timeout_s=settings.timeout_s,
    ) as ring:
        train(settings, ring)


if __name__ == "__main__":
    main()
