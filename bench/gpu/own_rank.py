"""Makes this process the only rank of a job, with the hook as `rankmend run` would have it."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.snapshots import prepare
from rankmend.progress import ProgressReader, RankProgress, StepRecord, open_owned


class OwnRank:
    """The rank, and what the hook has told of it."""

    def __init__(self, device: Any, folder: Path) -> None:
        self.device, self.folder = device, folder
        self._has_group = False
        self._is_hooked = False
        self._step = 0
        prepare(folder)
        self._reader = ProgressReader(
            open_owned(folder / "rank0", os.getuid()), str(folder / "rank0")
        )

    def start_group(self) -> None:
        """Begin a process group of one rank, unless there is one."""
        if self._has_group:
            return
        import torch.distributed as dist

        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        options = {"init_method": f"file://{self.folder}/store", "rank": 0, "world_size": 1}
        dist.init_process_group(self.device.backend, **options)
        self._has_group = True
        dist.all_reduce(self.device.torch.ones(1, device=self.device.name))
        self.device.synchronize()

    def hook(self) -> None:
        """Put the hook in, as it comes in with the first optimizer steps of a script; only once."""
        if self._is_hooked:
            return
        import torch

        import rankmend
        from rankmend.hook import torch_steps

        self.start_group()
        torch_steps.watch()
        parameter = torch.nn.Parameter(torch.ones(2, device=self.device.name))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(3):
            (parameter * 2).sum().backward()
            optimizer.step()
        self.step()
        wait = torch.distributed.Work.wait
        if rankmend._writer is None or not hasattr(wait, "__wrapped__"):
            raise RuntimeError(f"the hook did not come in: {rankmend._attach_error!r}")
        self._is_hooked = True

    def step(self) -> StepRecord:
        """Report one more step, and return what the launcher reads of it."""
        import rankmend

        self._step += 1
        rankmend.step(self._step)
        record = self.read().last
        assert record is not None
        return record

    def read(self) -> RankProgress:
        return self._reader.read(time.monotonic())

    def flush(self) -> None:
        """Have the hook read the events that the device has passed: it does so at the next wait."""
        import torch.distributed as dist

        self.device.synchronize()
        dist.all_reduce(self.device.torch.ones(1, device=self.device.name), async_op=True).wait()
        self.device.synchronize()

    def pending(self) -> int:
        """Return the number of pairs of events that the hook has not read yet."""
        import torch.distributed as dist

        from rankmend.hook.stream_waits import StreamWaits

        cells = dist.Work.wait.__closure__ or ()
        found = [one.cell_contents for one in cells if isinstance(one.cell_contents, StreamWaits)]
        return len(found[0]) if found else 0

    def without_hook(self, action: Callable[[], Any]) -> Any:
        """Run an action with the hook's functions passing everything on."""
        import rankmend

        writer, rankmend._writer = rankmend._writer, None
        try:
            return action()
        finally:
            rankmend._writer = writer
