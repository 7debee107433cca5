"""How a launcher and its controller reach each other: in one process, or over the network.

`recovery.run.in_process_link` hosts the controller of a job on one node, `recovery.run.remote_link`
speaks to one elsewhere. `recovery.run.node_launcher.serve` runs a launcher over either.
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
        """The attempts up to this one are known to have left no process on this node."""
        ...

    @property
    def outcome(self) -> JobOutcome | None:
        """How the job ended; None: it has not, as far as the controller said."""
        ...

    def put(self, report: Report) -> None:
        """Take a report to the controller. Must not block."""
        ...

    def start(self, launcher: Launcher) -> None:
        """Bring the controller's orders to the launcher from now on, and end it with the job."""
        ...

    def flush(self) -> None:
        """Wait within a bound until the controller has the newest report, if the job goes on."""
        ...

    def close(self) -> None:
        """Bring no more orders and no more reports."""
        ...

    def leave(self, last: Report | None) -> None:
        """Tell a job that goes on that this node is empty; ``last``: what there is to say."""
        ...

    def exit_code(self, stop_requested: StopReason | None) -> int:
        """Say how the run ended, and return the code for the shell."""
        ...
