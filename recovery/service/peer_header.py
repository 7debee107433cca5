"""How one controller tells another for whom it asks: two headers, made here and read here."""

import base64
import binascii
import hmac
from enum import Enum
from typing import Final

import msgspec

from recovery.service.roles import READERS, DeniedError, Role, Subject

SCHEME: Final = "Rankmend-Peer"
SUBJECT_HEADER: Final = "Rankmend-Subject"


class _Reads(Enum):
    OWN = "own"
    FLEET = "fleet"


class _SpokenFor(msgspec.Struct):
    name: str
    roles: list[Role]
    nodes: list[str]
    jobs: list[str]
    how: str
    via: str
    # Which jobs `read` among the roles shows. None: an older controller, where it shows everybody's, has asked for a subject
    # that may see them there. Older ones know no role fleet-read, so it isn't sent.
    reads: _Reads | None = None


def peer_headers(secret: str, subject: Subject, title: str) -> dict[str, str]:
    """Return the headers of a request for ``subject`` by the controller ``title``, to the one with this secret."""
    roles = set(subject.roles - READERS)
    if subject.roles & READERS:
        roles.add(Role.READ)
    told = _SpokenFor(
        subject.name,
        sorted(roles, key=lambda role: role.value),
        list(subject.nodes),
        list(subject.jobs),
        subject.how,
        title,
        _Reads.OWN if subject.reads_own_jobs_only else _Reads.FLEET,
    )
    text = base64.urlsafe_b64encode(msgspec.json.encode(told)).decode("ascii")
    return {"Authorization": f"{SCHEME} {secret}", SUBJECT_HEADER: text}


def is_peer(authorization: str | None) -> bool:
    return authorization is not None and authorization.startswith(f"{SCHEME} ")


def read_peer(secret: str, authorization: str, spoken_for: str | None) -> Subject:
    """Return for whom another controller speaks, or raise DeniedError. ``secret``: this controller's own; empty: it has none."""
    given = authorization.removeprefix(f"{SCHEME} ").encode("utf-8", "replace")
    if not secret or not hmac.compare_digest(secret.encode(), given):
        raise DeniedError("this is not the secret of the present start of this controller", 401)
    try:
        told = msgspec.json.decode(base64.urlsafe_b64decode(spoken_for or ""), type=_SpokenFor)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise DeniedError(f"{SUBJECT_HEADER} can't be read: {error}", 401) from error
    roles = frozenset(told.roles)
    if Role.READ in roles and told.reads is not _Reads.OWN:
        roles |= {Role.FLEET_READ}
    return Subject(
        told.name,
        roles,
        tuple(told.nodes),
        tuple(told.jobs),
        f"{told.how} by way of {told.via}"[:200],
        told.via[:200] or "another controller",
    )
