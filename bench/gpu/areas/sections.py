"""The sections that the hook tells of an unchanged script on a GPU: right, cheap, and without a trace in the results."""

import os
import tempfile
from pathlib import Path
from typing import Any

from bench.gpu.device import Gpu
from bench.gpu.hidden_truth import HiddenTruth
from bench.gpu.own_rank import OwnRank
from bench.gpu.rows import Telling
from bench.gpu.section_harm import COST_US_MAX, Harm
from bench.gpu.section_truth import OFF_RATIO_MAX, Truth

LIMIT_S = 130.0
_OFF = f"within {OFF_RATIO_MAX:.0%}"
CLAIMS: dict[str, str] = {
    "training_equal": "Training with DDP on the GPU ends with the same bits with the hook as without it.",
    "graph_equal": "A captured CUDA graph of a training step replays to the same bits with the hook as without it.",
    "compile_equal": "A model under torch.compile trains to the same bits with the hook as without it.",
    "reduce_overhead_equal": "A model under torch.compile with CUDA graphs (reduce-overhead) trains to the same bits with the hook as without it.",
    "graph_collective_equal": "A captured CUDA graph with an NCCL collective in it replays to the same bits with the hook as without it.",
    "wait": f"The time that the default stream waits for a collective is reported {_OFF}, and so is the rank's own time.",
    "wait_side_stream": f"The time that a side stream waits for a collective is reported {_OFF}.",
    "collective": f"The time of a blocking NCCL collective is reported {_OFF} of what events measure around it.",
    "backward_end": f"The time that DDP's end of backward waits for gradients is reported {_OFF}.",
    "barrier": "A barrier in which host and stream wait together counts once.",
    "loader": f"The time of a data loader's batches is reported as io {_OFF}.",
    "own_sections": f"Sections of the script that wait for the GPU are reported {_OFF}.",
    "hidden_measured": f"What an asynchronous NCCL collective hides is reported {_OFF} where the stream waits for its end.",
    "hidden_range": "What an asynchronous NCCL collective hides lies within the reported range where it is over at the wait.",
    "hidden_once": f"Of two NCCL collectives in flight at once, and of a wait within, the time is reported once, {_OFF}.",
    "no_sync": "The hook neither waits for the stream nor makes the host wait: 50 collectives return while a kernel runs.",
    "bounded": "With a stream that does not advance, no more pairs of events are kept than allowed, and all are read when it continues.",
    "cost": f"The hook costs a training step with DDP and one more collective less than {COST_US_MAX:g} µs.",
}


def run(telling: Telling, device: Any = None) -> None:
    """Try the rows. ``device``: stands in for the GPU where this code is tried without one."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read with the first handle
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool takes seconds to start
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rankmend-gpu-") as name,
        tempfile.TemporaryDirectory(prefix="rankmend-compiled-") as compiled,
    ):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{compiled}/inductor"
        os.environ["TRITON_CACHE_DIR"] = f"{compiled}/triton"
        rank = OwnRank(device or Gpu(), Path(name))
        harm, truth, hidden = Harm(rank), Truth(rank), HiddenTruth(rank)
        trials = {
            "wait": lambda trial: truth.wait(trial, on_side=False),
            "wait_side_stream": lambda trial: truth.wait(trial, on_side=True),
            "collective": truth.collective,
            "backward_end": truth.backward_end,
            "barrier": truth.barrier,
            "loader": truth.loader,
            "own_sections": truth.own_sections,
            "hidden_measured": hidden.measured,
            "hidden_range": hidden.within,
            "hidden_once": hidden.once,
            "no_sync": truth.no_sync,
            "bounded": truth.bounded,
            "cost": harm.cost,
        }
        # Before the hook comes in, and what may spoil the process last.
        for kind in ("training", "graph", "compile", "reduce_overhead", "graph_collective"):
            harm.train_without(kind)
        for kind in ("training", "graph"):
            with telling.row(f"{kind}_equal") as trial:
                harm.equal(trial, kind)
        for row, attempt in trials.items():
            with telling.row(row) as trial:
                attempt(trial)
        for kind in ("compile", "reduce_overhead", "graph_collective"):
            with telling.row(f"{kind}_equal") as trial:
                harm.equal(trial, kind)
