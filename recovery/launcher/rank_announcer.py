"""Tells this node's agent and `rankmend status` about the ranks' processes and the findings."""

import uuid

from rankmend.agent_socket import OfferedRank, ShownFinding
from rankmend.checkpoint_figures import CheckpointFigures
from recovery.launcher.agent_link import AgentLink
from recovery.launcher.host.hardware import HardwareWatch
from recovery.launcher.ranks.launch_plan import LaunchPlan
from recovery.launcher.ranks.launched import LaunchedAttempt
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.messages.exchange import Order


class RankAnnouncer:
    def __init__(
        self,
        plan: LaunchPlan,
        runtime: RuntimeFolder,
        agent: AgentLink,
        hardware: HardwareWatch | None,
    ) -> None:
        self._plan = plan
        self._runtime = runtime
        self._agent = agent
        self._hardware = hardware
        self._announced: tuple[int, ...] | None = None  # what each rank's process is
        self._found_at_s: dict[str, float] = {}  # key of a finding -> when it first arrived

    def start(self) -> None:
        if self._hardware is not None:
            self._hardware.start()

    def tick(self) -> None:
        self._agent.tick()

    def announce(self, attempt: LaunchedAttempt) -> None:
        """Announce an attempt once each of its ranks has a process."""
        ranks = attempt.ranks.values()
        self._announced = _processes(attempt)
        self._runtime.write_ranks(
            attempt.number,
            [
                {
                    "rank": rank.rank,
                    "local_rank": rank.local_rank,
                    "pid": rank.shown_pid,
                    "is_contained": rank.is_contained,
                    "start": rank.start.kind.value,
                    "why_not_forked": rank.start.why_not_forked,
                }
                for rank in ranks
            ],
        )
        if self._hardware is not None:
            self._hardware.watch({rank.rank: rank.shown_pid for rank in ranks})
        self._agent.offer(
            uuid.UUID(self._plan.job_id),
            self._plan.job_name,
            attempt.number,
            [
                (OfferedRank(rank.rank, rank.local_rank, rank.shown_pid), rank.files.progress)
                for rank in ranks
            ],
        )

    def follow(self, attempt: LaunchedAttempt) -> None:
        """Announce ranks in containers again once their own processes are known."""
        if self._announced is not None and self._announced != _processes(attempt):
            self.announce(attempt)

    def withdraw(self) -> None:
        """Announce that no rank runs any longer."""
        self._announced = None
        self._agent.withdraw()
        if self._hardware is not None:
            self._hardware.watch({})

    def show_checkpoint(self, figures: CheckpointFigures | None) -> None:
        """Show the agent news about the job's checkpoints."""
        if figures is not None:
            self._agent.show_checkpoint(figures)

    def take_order(self, order: Order, now_s: float) -> None:
        """Announce all of the controller's findings about the ranks."""
        found_at_s = self._found_at_s
        keys = [finding.key for finding in order.findings]
        self._found_at_s = {key: found_at_s.get(key, now_s) for key in keys}
        self._agent.tell(
            [
                ShownFinding(
                    kind=finding.kind,
                    ranks=finding.ranks,
                    section=finding.section,
                    cause=finding.cause,
                    factor=finding.factor,
                    at_s=self._found_at_s[finding.key],
                )
                for finding in order.findings
            ]
        )
        if self._hardware is not None:
            self._hardware.ask(order.reads_hardware)

    def close(self) -> None:
        if self._hardware is not None:
            self._hardware.stop()
        self._agent.close()


def _processes(attempt: LaunchedAttempt) -> tuple[int, ...]:
    return tuple(rank.shown_pid for rank in attempt.ranks.values())
