"""Jobs that are watched and not launched, and stand-ins for what their scripts import."""

import json
import os
from pathlib import Path

from agent.ranks.watched import WatchedRanks
from rankmend.hook.watched_layout import job_id_of
from rankmend.hook.writer import Writer
from rankmend.progress import RankIdentity, create

KEY = '["toy", "41", "run", "pretrain"]'
TOLD = {"key": KEY, "launcher": "torchrun", "name": "pretrain", "slurm_job": "41"}


class Machine:
    """A folder as /dev/shm, with a job of this user, whose ranks this process writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.user = root / f"rankmend-watch-{os.getuid()}"
        self.job_id = job_id_of(os.getuid(), KEY)
        self.job = self.user / str(self.job_id)
        self.job.mkdir(parents=True)
        self.user.chmod(0o755)
        self.ranks = WatchedRanks(root)

    def tell(self, **changes: object) -> None:
        (self.job / "job.json").write_text(json.dumps({**TOLD, **changes}))

    def add(self, rank: int, attempt: int = 1) -> Writer:
        path = self.job / f"rank-{rank}.progress"
        path.unlink(missing_ok=True)
        os.close(create(path, RankIdentity(self.job_id, attempt, rank, rank, 4)))
        return Writer(str(path))

    def found(self) -> list[int]:
        return [rank.identity.rank for rank in self.ranks.look().ranks]


OPTIMIZER = """
_hooks = []

def register_optimizer_step_post_hook(hook):
    _hooks.append(hook)

class SGD:
    def __init__(self):
        self.param_groups, self.state = [{"lr": 0.1}], {}

    def step(self):
        for hook in _hooks:
            hook(self, (), {})
"""
