"""Trains on ranks that the script starts itself, or that another launcher below the rank starts: on two where that is cheap.

inner_ranks.py HOW,HOW FOLDER LET_GO [CHECKPOINT]

Each attempt takes the next way, and then the first again; it saves once, at its number times 20.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path


def train(
    rank: int | None, world_size: int, port: int, folder: str, let_go: str, path: str | None
) -> None:
    """``rank``: None where a launcher's variables say it, or accelerate's debug_launcher has formed the group."""
    import torch
    import torch.distributed as dist
    from descent import Descent

    is_joined = dist.is_initialized()
    if rank is None and not is_joined:
        dist.init_process_group("gloo")
    elif rank is not None:
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    model = torch.nn.Linear(4, 1)
    optimizer = Descent(model.parameters())
    step = 0
    if path is not None:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        step = state["step"]
    is_over = torch.zeros(1)
    while not is_over:
        step += 1
        model(torch.ones(1, 4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        time.sleep(0.02)
        if step == 20 * int(os.environ["RANKMEND_ATTEMPT"]) and dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": {"lr": 0.01}, "step": step}
            torch.save(state, Path(folder, "tmp"))
            Path(folder, "tmp").replace(Path(folder, f"step_{step}.pt"))
        is_over.fill_(Path(let_go).exists())
        dist.all_reduce(is_over, op=dist.ReduceOp.MAX)
    if not is_joined:  # else its end removes a file that debug_launcher removes
        dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    ways, folder, let_go, *rest = sys.argv[1:]
    in_turn = ways.split(",")
    how = in_turn[(int(os.environ["RANKMEND_ATTEMPT"]) - 1) % len(in_turn)]
    world_size = 1 if how == "forkserver" else 2  # each process imports PyTorch by itself
    arguments = (world_size, free_port(), folder, let_go, rest[0] if rest else None)
    if how in ("spawn", "fork", "forkserver"):
        import torch.multiprocessing as mp
        import torch.optim  # noqa: F401 - as a script that makes its optimizer elsewhere

        mp.start_processes(train, arguments, nprocs=world_size, start_method=how)
    elif how == "debug_launcher":
        from accelerate import debug_launcher

        debug_launcher(train, args=(None, *arguments), num_processes=2)
    elif how == "torchrun":
        options = ["--standalone", "--nproc-per-node=1", __file__, "in place", *sys.argv[2:]]
        command = [sys.executable, "-m", "torch.distributed.run", *options]
        raise SystemExit(subprocess.call(command))
    else:
        train(None, *arguments)


if __name__ == "__main__":
    main()
