"""Starts the ranks of an attempt: forked or from a standby where that is possible, else through the guardian."""

import errno
import os
from collections.abc import Mapping, Sequence

from recovery.launcher.evidence.rank_evidence import recorder_files
from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.guardian.packets import SpawnFailed
from recovery.launcher.processes.standing import own_mark
from recovery.launcher.ranks.command import fill
from recovery.launcher.ranks.contained import (
    WHY_NOT_FORKED,
    RankPrefix,
    environment_in_front,
    wrap,
)
from recovery.launcher.ranks.environment import Rendezvous, rank_environment
from recovery.launcher.ranks.launch_plan import LaunchPlan
from recovery.launcher.ranks.launched import LaunchedAttempt, LaunchedRank
from recovery.launcher.ranks.rank_output import Output
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.launcher.ranks.waiting_processes import AFRESH, WaitingProcesses
from recovery.launcher.rendezvous.rendezvous_store import RendezvousStore
from recovery.messages.exchange import Order, RankStart, StartKind


class RankStarter:
    def __init__(
        self,
        plan: LaunchPlan,
        store: RendezvousStore,
        output: Output,
        runtime: RuntimeFolder,
        waiting: WaitingProcesses | None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._output = output
        self._runtime = runtime
        self._waiting = waiting
        # Those that are forked or made of standbys, and may have to be started afresh.
        self._quick: dict[int, tuple[Order, LaunchedRank, Rendezvous]] = {}

    def make_ranks(self, order: Order, attempt: LaunchedAttempt) -> None:
        """Add an order's ranks with their files to the attempt, without starting them."""
        self._quick.clear()
        for local_rank, number in enumerate(order.ranks):
            files, reader = self._runtime.make_rank_files(
                order.attempt, number, local_rank, order.world_size
            )
            is_contained = self._plan.command.prefix is not None
            attempt.ranks[number] = LaunchedRank(
                number,
                local_rank,
                files,
                reader,
                is_contained=is_contained,
                is_program=self._plan.command.is_program,
                step_work=self._plan.step_work,
            )

    def start(self, order: Order, attempt: LaunchedAttempt, guardian: Guardian) -> None:
        """Start the ranks; on `LaunchError` the ranks started before it keep running."""
        rendezvous = self._open_rendezvous(order, guardian)
        if self._waiting is not None:
            files = [rank.files.imports for rank in attempt.ranks.values()]
            self._waiting.learn_from(path for path in files if path is not None)
        for rank in attempt.ranks.values():
            self._spawn(guardian, order, rank, rendezvous)

    def start_again(self, failed: SpawnFailed, guardian: Guardian) -> bool:
        """Start a rank afresh that could not be forked, or whose standby has just died.

        False: the rank can't be started. One that was fenced before it was forked is none to start again.
        """
        quick = self._quick.pop(failed.rank, None)
        if quick is None:
            return False
        is_forked = quick[1].start.kind is StartKind.FORKED
        if is_forked and failed.errno == errno.ESTALE:
            return True
        if not is_forked and failed.errno != errno.ESRCH:
            return False
        if is_forked and self._waiting is not None:
            self._waiting.note_failed_fork(guardian, failed)
        self._spawn(guardian, *quick, why_fresh=failed.message)
        return True

    def forget(self, attempt: LaunchedAttempt) -> None:
        """Drop the store and the files of an attempt that has no process left."""
        attempt.close()
        self._store.drop(attempt.number)
        self._runtime.remove_attempt(attempt.number)

    def _open_rendezvous(self, order: Order, guardian: Guardian) -> Rendezvous:
        forked = None if self._waiting is None else self._waiting.store_fork(guardian)
        if order.rendezvous is None:
            return self._store.open_attempt(order.attempt, forked=forked)
        if order.group_rank == 0:
            return self._store.open_attempt(order.attempt, order.rendezvous.port, forked)
        return self._store.join_attempt(order.rendezvous)

    def _spawn(
        self,
        guardian: Guardian,
        order: Order,
        rank: LaunchedRank,
        rendezvous: Rendezvous,
        why_fresh: str | None = None,
    ) -> None:
        """``why_fresh``: why no waiting process may become this rank; None: one may."""
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
            tells_imports=self._waiting is not None and self._waiting.is_learning,
            snapshots=self._runtime.snapshots if self._plan.keeps_snapshots else None,
            drill_file=rank.files.progress.with_suffix(".drill")
            if self._plan.allows_drills
            else None,
        )
        rank.recorder = recorder_files(environment, rank.rank, self._plan.folder)
        argv = fill(self._plan.command.argv, order.restore, rank.local_rank, rank.rank)
        prefix = self._plan.command.prefix
        if prefix is not None:
            argv = self._put_behind(prefix, argv, environment, order, rank)
            environment = environment_in_front(environment, self._plan.environment)
        out, err = self._output.open_rank(order.attempt, rank.rank, rank.local_rank)
        spawn = Spawn(
            attempt=order.attempt,
            rank=rank.rank,
            argv=argv,
            env=environment,
            cwd=str(self._plan.folder),
            stdout_fd=out,
            stderr_fd=err,
            stdin_fd=self._plan.stdin,
            cpus=self._plan.cpus[rank.local_rank] if self._plan.cpus else (),
            is_contained=prefix is not None,
        )
        try:
            rank.start = self._start_quickly(guardian, spawn, rank, why_fresh)
            if rank.start.kind is StartKind.FRESH:
                guardian.spawn(spawn)
            else:
                self._quick[rank.rank] = (order, rank, rendezvous)
        finally:
            os.close(out)
            os.close(err)

    def _put_behind(
        self,
        prefix: RankPrefix,
        argv: Sequence[str],
        environment: Mapping[str, str],
        order: Order,
        rank: LaunchedRank,
    ) -> tuple[str, ...]:
        values = {
            "runtime": str(self._runtime.path),
            "cwd": str(self._plan.folder),
            "rank": str(rank.rank),
            "local_rank": str(rank.local_rank),
            "attempt": str(order.attempt),
            "job_id": self._plan.job_id,
        }
        site = str(self._runtime.site)
        return wrap(prefix, argv, environment, self._plan.environment, site, values)

    def _start_quickly(
        self, guardian: Guardian, spawn: Spawn, rank: LaunchedRank, why_fresh: str | None
    ) -> RankStart:
        if why_fresh is not None:
            return RankStart(StartKind.FRESH, why_fresh)
        if self._plan.command.prefix is not None:
            return RankStart(StartKind.FRESH, WHY_NOT_FORKED)
        if self._waiting is None:
            return AFRESH
        return self._waiting.start(guardian, spawn, rank.files.imports)
