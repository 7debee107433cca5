"""What watches jobs of other launchers in the matrix: the services of `rankmend drill`, and a real Slurm where jobs run under it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.watch.hook_folder import make_hook_folder
from rankmend.watch.lines import WatchPlace, lines_for
from recovery.lab.drill.watched_site import WatchedSite, watching
from tests.support.slurm import SlurmCluster, slurm_cluster

NODE: Final = "node1"  # the agent's name: all of Slurm's nodes are this machine
CPUS: Final = 8  # of a node, as Slurm has it
CONFIRM_S: Final = 5.0
# Requests are made as by default, but for how soon and how often: a cell breaks its job on purpose, and many run in an hour.
_POLICY: Final = f"""
[watched]
action = "requeue"
dry_run = false
confirm_s = {CONFIRM_S:g}
acts_per_hour_max = 100
"""
_SLURM: Final = """\
enabled = true
act = true
requeues_per_hour_max = 1000
requeues_per_job_day_max = 20
timeout_s = 20.0"""


@dataclass(frozen=True, slots=True)
class Place:
    """The services, and the Slurm on which the controller acts."""

    site: WatchedSite
    slurm: SlurmCluster | None = None


@contextmanager
def watched_site(
    folder: Path, *, nodes: int = 0, partitions: Sequence[str] = ()
) -> Iterator[Place]:
    """Run a controller and an agent, and a Slurm of so many nodes, if any."""
    home = folder / "site"
    home.mkdir()
    if not nodes:
        with watching(home, node=NODE, policy=_POLICY) as site:
            yield Place(site)
        return
    hook = folder / "hook"
    make_hook_folder(hook)
    prolog = folder / "task_prolog.sh"
    prolog.write_text(lines_for(WatchPlace.TASKPROLOG, str(hook), allows_drills=True))
    prolog.chmod(0o755)
    place = folder / "slurm"
    place.mkdir()
    with ExitStack() as stack:
        # The first node takes all jobs that run at once: the agent has its name.
        # Slurm gives a node up soon: that is a part of its time to recover.
        settings = {"SlurmdTimeout": "10", "MessageTimeout": "10", "TaskProlog": str(prolog)}
        slurm = stack.enter_context(slurm_cluster(place, nodes, partitions, cpus=CPUS, **settings))
        site = stack.enter_context(
            watching(
                home,
                node=NODE,
                policy=_POLICY,
                tables={"slurm": _SLURM},
                variables=slurm.environment,
            )
        )
        yield Place(site, slurm)
