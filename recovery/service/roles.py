"""Subjects, their roles, and the errors that refuse them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from rankmend.errors import RankmendError
from recovery.journal.witnesses import Witness
from recovery.messages.outside import Refusal

JOBS_OWN: Final = "job"
"""The one subject of a controller that a launcher hosts: whoever has the job's secret. It is no person's name."""


class Role(Enum):
    LAUNCH = "launch"  # launchers: join jobs of this subject, report, poll for orders
    REPORT = "report"  # an agent: alerts about its own node; only by a node's certificate
    ALERT = "alert"  # Alertmanager, Prometheus: alerts about any node
    READ = "read"  # the subject's own jobs, with their nodes, incidents and plans
    FLEET_READ = "fleet-read"  # everybody's jobs, all nodes, discovery, metrics
    ACT = "act"  # commands, approvals, pauses, drains


TOKEN_ROLES: Final = tuple(role for role in Role if role is not Role.REPORT)
READERS: Final = frozenset({Role.READ, Role.FLEET_READ})
"""One of these reads jobs, and what belongs to them."""


WITNESS_OF: Final[Mapping[Role, Witness]] = MappingProxyType(
    {
        Role.LAUNCH: Witness.LAUNCHER,
        Role.REPORT: Witness.ALERT,
        Role.ALERT: Witness.ALERT,
        Role.READ: Witness.LAUNCHER,
        Role.FLEET_READ: Witness.LAUNCHER,
        Role.ACT: Witness.PERSON,
    }
)
"""What the word of a subject with this role is worth outside a job: `recovery.journal.witnesses`."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An authenticated client and its limits."""

    name: str
    roles: frozenset[Role]
    nodes: tuple[str, ...] = ()  # shell patterns of allowed nodes; (): all
    jobs: tuple[str, ...] = ()  # shell patterns of allowed job names; (): all
    how: str = "token"  # "token ID", "certificate", "loopback"
    via: str = ""  # another controller of the database, which speaks for it

    @property
    def token_id(self) -> str:
        """Return the id of the token; empty: it proves itself otherwise."""
        scheme, _blank, token_id = self.how.partition(" ")
        return token_id if scheme == "token" else ""

    @property
    def is_node(self) -> bool:
        """Return whether this is a node by its certificate, which any process of its agent's user can use."""
        return Role.REPORT in self.roles

    @property
    def reads_own_jobs_only(self) -> bool:
        """Return whether the jobs of all other subjects don't exist for this one when it reads."""
        return Role.FLEET_READ not in self.roles

    @property
    def sees(self) -> tuple[object, ...]:
        """Return what decides what the subject may read: equal for subjects that read the same."""
        return self.name if self.reads_own_jobs_only else None, self.nodes, self.jobs

    def may_use_node(self, node: str) -> bool:
        return not self.nodes or any(fnmatchcase(node, pattern) for pattern in self.nodes)

    def may_use_job(self, name: str) -> bool:
        """Return whether a job's name is within the limits. Reading asks `permission.may_read_job`."""
        return not self.jobs or any(fnmatchcase(name, pattern) for pattern in self.jobs)


LOOPBACK: Final = Subject("loopback", frozenset(Role) - {Role.REPORT}, how="loopback")
"""Everybody on this machine, where the controller listens on loopback only and has no tokens."""


class DeniedError(RankmendError):
    """The client is not authenticated (401), or lacks the permission (403)."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnknownError(RankmendError):
    """The thing does not exist, or lies outside the subject's limits."""


class UnknownNodeError(UnknownError):
    """No launcher, alert, person or setting has named the node."""

    def __init__(self, message: str, node: str) -> None:
        super().__init__(message)
        self.field, self.value, self.refusal = "node", node, Refusal.UNKNOWN_NODE.value


class TooManyError(RankmendError):
    """The subject sends too many requests."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
