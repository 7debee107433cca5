"""The last report to the controller, sent by the guardian of a killed launcher.

Separate from `last_word`, which sends it: the only launcher of a job needs no controller client.
"""

import msgspec

from recovery.api.contact import Contact
from recovery.messages.exchange import VERSION, Report


class LastWord(msgspec.Struct, frozen=True, kw_only=True):
    """The sender, the addressee and the report. Contains secrets: never on a command line or in an environment."""

    job_id: str
    node: str
    launcher_id: str
    boot_id: str
    slots: int
    launcher_started_s: float
    contact: Contact
    spread_s: float = 0.0  # spreads the reports of launchers that die at the same time

    def report(self, empty_through: int) -> Report:
        """Return the launcher's last report."""
        return Report(
            version=VERSION,
            node=self.node,
            boot_id=self.boot_id,
            job_id=self.job_id,
            revision=0,
            attempt=0,
            ranks=(),
            empty_through=empty_through,
            launcher_id=self.launcher_id,
            slots=self.slots,
            launcher_started_s=self.launcher_started_s,
            leaving=True,
        )
