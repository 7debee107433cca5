"""Starts the ranks of an attempt: from a standby if one is ready, else through the guardian."""

import errno
import os

from recovery.launcher.evidence.recorder import recorder_files
from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.guardian.packets import SpawnFailed
from recovery.launcher.processes.standing import own_mark
from recovery.launcher.ranks.command import fill
from recovery.launcher.ranks.environment import Rendezvous, rank_environment
from recovery.launcher.ranks.launch_plan import LaunchPlan
from recovery.launcher.ranks.launched import LaunchedAttempt, LaunchedRank
from recovery.launcher.ranks.rank_output import Output
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.launcher.ranks.standbys import StandbyPool
from recovery.launcher.rendezvous.rendezvous_store import RendezvousStore
from recovery.messages.exchange import Order


class RankStarter:
    def __init__(
        self,
        plan: LaunchPlan,
        store: RendezvousStore,
        output: Output,
        runtime: RuntimeFolder,
        standbys: StandbyPool | None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._output = output
        self._runtime = runtime
        self._standbys = standbys
        self._promoted: dict[int, tuple[Order, LaunchedRank, Rendezvous]] = {}

    def make_ranks(self, order: Order, attempt: LaunchedAttempt) -> None:
        """Add an order's ranks with their files to the attempt, without starting them."""
        self._promoted.clear()
        for local_rank, number in enumerate(order.ranks):
            files, reader = self._runtime.make_rank_files(
                order.attempt, number, local_rank, order.world_size
            )
            attempt.ranks[number] = LaunchedRank(number, local_rank, files, reader)

    def start(self, order: Order, attempt: LaunchedAttempt, guardian: Guardian) -> None:
        """Start the ranks; on `LaunchError` the ranks started before it keep running."""
        rendezvous = self._open_rendezvous(order)
        for rank in attempt.ranks.values():
            self._spawn(guardian, order, rank, rendezvous, may_promote=True)

    def start_again(self, failed: SpawnFailed, guardian: Guardian) -> bool:
        """Start a rank without a standby, because its standby has just died."""
        promoted = self._promoted.pop(failed.rank, None)
        if promoted is None or failed.errno != errno.ESRCH:
            return False
        self._spawn(guardian, *promoted, may_promote=False)
        return True

    def forget(self, attempt: LaunchedAttempt) -> None:
        """Drop the store and the files of an attempt that has no process left."""
        attempt.close()
        self._store.drop(attempt.number)
        self._runtime.remove_attempt(attempt.number)

    def _open_rendezvous(self, order: Order) -> Rendezvous:
        if order.rendezvous is None:
            return self._store.open_attempt(order.attempt)
        if order.group_rank == 0:
            return self._store.open_attempt(order.attempt, order.rendezvous.port)
        return self._store.join_attempt(order.rendezvous)

    def _spawn(
        self,
        guardian: Guardian,
        order: Order,
        rank: LaunchedRank,
        rendezvous: Rendezvous,
        *,
        may_promote: bool,
    ) -> None:
        environment = rank_environment(
            self._plan.environment,
            order,
            rank.local_rank,
            rendezvous,
            rank.files,
            run_id=self._plan.run_id,
            role=self._plan.role,
            site_folder=self._runtime.site,
            fence_file=self._plan.fence_file,
            is_auto=self._plan.is_auto,
            is_old_torch=self._plan.is_old_torch,
            node=self._plan.mark_node,
            is_virtual_local_rank=self._plan.is_virtual_local_rank,
            launcher=own_mark(),
        )
        rank.recorder = recorder_files(environment, rank.rank, self._plan.folder)
        out, err = self._output.open_rank(order.attempt, rank.rank, rank.local_rank)
        spawn = Spawn(
            attempt=order.attempt,
            rank=rank.rank,
            argv=fill(self._plan.command.argv, order.restore, rank.local_rank),
            env=environment,
            cwd=str(self._plan.folder),
            stdout_fd=out,
            stderr_fd=err,
            stdin_fd=self._plan.stdin,
            cpus=self._plan.cpus[rank.local_rank] if self._plan.cpus else (),
        )
        try:
            pool = self._standbys if may_promote else None
            if pool is not None and pool.promote(guardian, spawn):
                self._promoted[rank.rank] = (order, rank, rendezvous)
            else:
                guardian.spawn(spawn)
        finally:
            os.close(out)
            os.close(err)
