"""A rank that takes one snapshot after another until it is killed: python -m bench.gpu.snapshot_victim DEVICE FOLDER.

All values of its state are the number of the step.
"""

import sys
from pathlib import Path

from bench.snapshots import prepare

TENSORS = 20
BYTES = 100_000_000
READY = 3  # both files are made
AHEAD = 4  # steps that the host may be ahead of the device


def main() -> None:
    device, folder = sys.argv[1], Path(sys.argv[2])
    prepare(folder)
    import torch

    import rankmend

    count = BYTES // 4 // TENSORS
    state = {f"{number}": torch.zeros(count, device=device) for number in range(TENSORS)}
    taken, is_told = 0, False
    for step in range(1, 1 << 24):  # exact in float32
        for tensor in state.values():
            tensor.fill_(step)
        taken += rankmend.snapshot(step, state)
        if step % AHEAD == 0 and device == "cuda":
            torch.cuda.synchronize()
        if taken >= READY and not is_told:
            is_told = True
            print("ready", flush=True)


if __name__ == "__main__":
    main()
