"""The link between a launcher and its controller: in one process, or over the network.

`recovery.run.in_process_link` hosts the controller of a job on one node; `recovery.run.remote_link`
talks to a controller elsewhere. `recovery.run.node_launcher.serve` runs a launcher over either.
"""

from typing import Protocol

from recovery.journal.job_records import JobOutcome
from recovery.launcher.launcher import Launcher
from recovery.launcher.membership.node_membership import Membership
from recovery.messages.exchange import Report, StopReason


class ControllerLink(Protocol):
    @property
    def membership(self) -> Membership:
        """How the launcher takes part in the job of this controller."""
        ...

    @property
    def empty_through(self) -> int:
        """No process of the attempts up to this one is left on this node."""
        ...

    @property
    def outcome(self) -> JobOutcome | None:
        """The job's outcome; None: the controller has not reported its end."""
        ...

    def put(self, report: Report) -> None:
        """Send a report to the controller. Must not block."""
        ...

    def start(self, launcher: Launcher) -> None:
        """Deliver the controller's orders to the launcher from now on, and end it with the job."""
        ...

    def flush(self) -> None:
        """Wait, with a bound, until the controller has the newest report, if the job continues."""
        ...

    def close(self) -> None:
        """Deliver no more orders or reports."""
        ...

    def leave(self, last: Report | None) -> None:
        """Report to a continuing job that this node is empty; ``last``: the last report."""
        ...

    def exit_code(self, stop_requested: StopReason | None) -> int:
        """Print how the run ended, and return the exit code."""
        ...
