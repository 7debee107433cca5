"""What a controller knows of the others, by the database. Values only: each picture is replaced as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from recovery.service.job_store import FoundJobs


@dataclass(frozen=True, slots=True)
class OtherController:
    """Another controller whose leases hold."""

    controller_id: str
    name: str  # of its host
    url: str
    secret: str = field(
        default="", repr=False
    )  # that it asks of peers; empty: an older one, which answers none
    certificate: str = ""  # SHA-256 of it, in hexadecimal; empty: no TLS

    @property
    def title(self) -> str:
        return f"{self.name} ({self.url})" if self.url else self.name


@dataclass(frozen=True, slots=True)
class JobElsewhere:
    """A job that has not ended and that this controller does not manage."""

    found: FoundJobs
    holder: str  # controller_id; empty: no controller that lives has it


@dataclass(frozen=True, slots=True)
class ControllerFleet:
    peers: Mapping[str, OtherController] = field(default_factory=dict)  # by controller_id
    jobs: Mapping[str, JobElsewhere] = field(default_factory=dict)  # by job id
    ended: Mapping[str, FoundJobs] = field(
        default_factory=dict
    )  # that others have ended since the start
    desks: Mapping[str, str] = field(
        default_factory=dict
    )  # name of a desk -> controller_id of who works on it


ALONE: Final = ControllerFleet()
