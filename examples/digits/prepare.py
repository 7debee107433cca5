"""Converts the handwritten digits inside scikit-learn to one .npz file.

    python examples/digits/prepare.py digits.npz

1,797 images of 8 x 8 pixels (the test set of the UCI "Optical Recognition of Handwritten
Digits" data), a fifth of them held out. Done once, so that the ranks import only numpy.
"""

import os
import sys
from pathlib import Path

import numpy as np

HELD_OUT_RATIO = 0.2
PIXEL_MAX = 16.0  # the data set counts dark points in blocks of 4 x 4


def prepare(path: Path) -> None:
    """Write the images, their digits and the split to ``path``, whole or not at all."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    held_out = int(len(order) * HELD_OUT_RATIO)
    images = (digits.data / PIXEL_MAX).astype(np.float32)[order]
    labels = digits.target.astype(np.int64)[order]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        np.savez(
            file,
            train_images=images[held_out:],
            train_labels=labels[held_out:],
            test_images=images[:held_out],
            test_labels=labels[:held_out],
        )
    temporary.replace(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: prepare.py FILE.npz")
    prepare(Path(sys.argv[1]))
