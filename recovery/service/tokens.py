"""The token file: who may speak to the controller, by the SHA-256 of a secret.

TOML, mode 0600. A token is `rm_ID_SECRET`: the id finds the entry, the secret of 256 random bits
is compared by its hash in constant time, and nothing but the hash is kept. docs/operate/security.md.

In a file without ``format``, which an older release has made, `read` was the right to see everybody's jobs. There it stays so
for a token that acts on them anyway, and for a subject that starts none: persons, dashboards and Prometheus. Subjects that may
launch see their own. The next change of the file writes this rule's result into it (`_convert`).
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec

from rankmend.errors import ConfigError
from rankmend.files import read_capped, replace_file
from recovery.api.wire import NAME_PATTERN
from recovery.service.roles import Role, Subject

FILE_BYTES_MAX: Final = 4 * 1024 * 1024  # 10,000 tokens of 400 bytes
TOKEN_CHARACTERS_MAX: Final = 256
_FORM: Final = re.compile(r"rm_([0-9a-f]{8})_([0-9a-f]{64})")
_BLOCK: Final = "[[token]]"
ENDING_MAX: Final = 1_000  # that metrics tell of
FORMAT: Final = 2  # since 2, read shows a subject's own jobs, and fleet-read everybody's
_ROLES: Final = re.compile(r"^(\s*roles\s*=\s*)\[[^\]]*\]", re.MULTILINE)

HEADER: Final = f"""\
# Who may use the controller. This file holds only hashes: a lost token must be replaced by a new one.
# rankmend controller token add|list|revoke edits this file; then: systemctl reload rankmend-controller
format = {FORMAT}
"""


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A token as the file holds it."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    subject: Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
    roles: Annotated[list[Role], msgspec.Meta(min_length=1)]
    nodes: list[str] = []
    jobs: list[str] = []
    expires: datetime | None = None
    comment: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Annotated[int, msgspec.Meta(ge=1, le=FORMAT)] = 1
    token: list[TokenEntry] = []


class TokenRefusedError(ConfigError):
    """A token is none, is unknown or has expired."""


class Tokens:
    """The tokens in force."""

    def __init__(self, entries: Iterable[TokenEntry] = ()) -> None:
        self._entries = {entry.id: entry for entry in entries}
        self._subjects = {
            entry.id: Subject(
                entry.subject,
                frozenset(entry.roles),
                tuple(entry.nodes),
                tuple(entry.jobs),
                f"token {entry.id}",
            )
            for entry in self._entries.values()
        }

    def __len__(self) -> int:
        return len(self._entries)

    def launchers(self, now: datetime) -> frozenset[str]:
        """Return the subjects who may launch jobs by a token in force."""
        return frozenset(
            entry.subject
            for entry in self._entries.values()
            if Role.LAUNCH in entry.roles and (entry.expires is None or entry.expires > now)
        )

    def ending(self) -> list[tuple[TokenEntry, float]]:
        """Return the tokens that end, and when (Unix time), the soonest first; at most ENDING_MAX."""
        entries = self._entries.values()
        ending = [
            (entry, entry.expires.timestamp()) for entry in entries if entry.expires is not None
        ]
        return sorted(ending, key=lambda entry: entry[1])[:ENDING_MAX]

    def find(self, text: str, now: datetime) -> Subject:
        """Return whose token it is, or raise TokenRefusedError without any part of the secret."""
        form = _FORM.fullmatch(text) if len(text) <= TOKEN_CHARACTERS_MAX else None
        if form is None:
            raise TokenRefusedError("this is not a rankmend token (rm_ID_SECRET)")
        entry = self._entries.get(form[1])
        retained = (
            entry.sha256 if entry is not None else "0" * 64
        )  # the same work for an unknown id
        is_right = hmac.compare_digest(hash_of(text), retained)
        if entry is None or not is_right:
            raise TokenRefusedError(f"token {form[1]} is unknown or was revoked")
        if entry.expires is not None and entry.expires <= now:
            raise TokenRefusedError(f"token {entry.id} expired at {entry.expires.isoformat()}")
        return self._subjects[entry.id]

    def find_by_hash(self, text_sha256: str, now: datetime) -> Subject | None:
        """Return whose token has this hash, while it is in force. For sessions, which keep no secret."""
        for entry in self._entries.values():
            if entry.sha256 == text_sha256:
                is_over = entry.expires is not None and entry.expires <= now
                return None if is_over else self._subjects[entry.id]
        return None


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def make_token(
    subject: str,
    roles: Iterable[Role],
    *,
    nodes: Iterable[str] = (),
    jobs: Iterable[str] = (),
    expires: datetime | None = None,
    comment: str = "",
) -> tuple[str, TokenEntry]:
    """Return a new token's text, which is nowhere kept, and its entry."""
    token_id = secrets.token_hex(4)
    text = f"rm_{token_id}_{secrets.token_hex(32)}"
    values: dict[str, object] = {
        "id": token_id,
        "sha256": hash_of(text),
        "subject": subject,
        "roles": [role.value for role in roles],
        "nodes": list(nodes),
        "jobs": list(jobs),
        "comment": comment,
    }
    if expires is not None:
        values["expires"] = expires
    try:
        return text, _checked(msgspec.convert(values, TokenEntry))
    except msgspec.ValidationError as error:
        raise ConfigError(f"token: {error}") from error


def _checked(entry: TokenEntry) -> TokenEntry:
    if Role.REPORT in entry.roles:
        raise ConfigError(
            f"token {entry.id}: only a node's certificate can carry the role report (rankmend "
            f"controller node-cert NODE): a token can't prove which node it is on"
        )
    if entry.expires is not None and entry.expires.tzinfo is None:
        raise ConfigError(f"token {entry.id}: expires has no time zone: {entry.expires}")
    return entry


def render(entry: TokenEntry) -> str:
    """Return an entry's lines for the file. JSON strings are TOML strings."""
    quote = partial(json.dumps, ensure_ascii=False)
    lines = [
        _BLOCK,
        f"id = {quote(entry.id)}",
        f"sha256 = {quote(entry.sha256)}",
        f"subject = {quote(entry.subject)}",
        f"roles = {quote([role.value for role in entry.roles])}",
    ]
    if entry.nodes:
        lines.append(f"nodes = {quote(entry.nodes)}")
    if entry.jobs:
        lines.append(f"jobs = {quote(entry.jobs)}")
    if entry.expires is not None:
        lines.append(f"expires = {entry.expires.astimezone(timezone.utc).isoformat()}")
    if entry.comment:
        lines.append(f"comment = {quote(entry.comment)}")
    return "\n".join(lines) + "\n"


def read_tokens(path: Path) -> list[TokenEntry]:
    """Return the entries of a token file that nobody else can write or read, with the roles that they have now."""
    return _parse(_read(path), path)


def _read(path: Path) -> str:
    name = f"token file {path}"

    def refuse_open_to_others(status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise ConfigError(
                f"{name} has mode {stat.S_IMODE(status.st_mode):04o}: others must not read or write it "
                f"(chmod 600)"
            )

    body = read_capped(path, FILE_BYTES_MAX, ConfigError, name=name, check=refuse_open_to_others)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text") from error


def _decode(text: str, path: Path) -> _File:
    try:
        return msgspec.toml.decode(text, type=_File)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"token file {path}: {error}") from error


def _parse(text: str, path: Path) -> list[TokenEntry]:
    found = _decode(text, path)
    entries = found.token if found.format >= FORMAT else read_as_before(found.token)
    seen: set[str] = set()
    for entry in entries:
        try:
            _checked(entry)
        except ConfigError as error:
            raise ConfigError(f"token file {path}: {error}") from error
        if entry.id in seen:
            raise ConfigError(f"token file {path}: id {entry.id} occurs twice")
        seen.add(entry.id)
    return entries


def read_as_before(entries: Sequence[TokenEntry]) -> list[TokenEntry]:
    """Return entries of format 1, with `fleet-read` where `read` goes on showing everybody's jobs. Pure.

    A subject with a token that may launch, whichever it is, owns jobs: what it reads is its own, as the older release's
    documents promised. A token with `act` reaches all jobs in any case.
    """
    launches = {entry.subject for entry in entries if Role.LAUNCH in entry.roles}
    return [
        msgspec.structs.replace(entry, roles=[*entry.roles, Role.FLEET_READ])
        if Role.READ in entry.roles
        and Role.FLEET_READ not in entry.roles
        and (Role.ACT in entry.roles or entry.subject not in launches)
        else entry
        for entry in entries
    ]


def narrowed(path: Path) -> list[TokenEntry]:
    """Return the tokens of an older release's file that saw everybody's jobs there, and see their own now."""
    text = _read(path)
    if _decode(text, path).format >= FORMAT:
        return []
    return [
        entry
        for entry in _parse(text, path)
        if Role.READ in entry.roles and Role.FLEET_READ not in entry.roles
    ]


def _convert(text: str, path: Path) -> str:
    """Return the text of a token file in the present format: each entry has the rights that it has now, by name."""
    if _decode(text, path).format >= FORMAT:
        return text
    wanted = _parse(text, path)
    head, *blocks = text.split(_BLOCK)
    head = re.sub(r"(?m)^format\s*=.*\n?", "", head).rstrip()
    new = [f"{head}\nformat = {FORMAT}\n\n".lstrip()]
    for entry, block in zip(wanted, blocks, strict=False):
        roles = json.dumps([role.value for role in entry.roles])
        new.append(_ROLES.sub(lambda found, roles=roles: found[1] + roles, block, count=1))  # type: ignore[misc]
    converted = _BLOCK.join(new)
    if len(wanted) != len(blocks) or _parse(converted, path) != wanted:
        raise ConfigError(
            f"token file {path} has the format of an older release and can't be converted: put `format = {FORMAT}` on top, and "
            f"{Role.FLEET_READ.value} into the roles of tokens that read everybody's jobs"
        )
    return converted


def add_token(path: Path, entry: TokenEntry) -> None:
    """Put an entry at the end of the file."""
    text = _convert(_read(path), path)
    new = f"{text.rstrip()}\n\n{render(entry)}"
    _parse(new, path)
    _rewrite(path, new)


def _rewrite(path: Path, text: str) -> None:
    """Replace the file; root leaves it to whom it belonged, the service's user."""
    before = path.stat()
    owner = (before.st_uid, before.st_gid) if os.geteuid() == 0 else None
    replace_file(path, text.encode(), ConfigError, owner=owner)


def find_token(path: Path, token_id: str) -> TokenEntry:
    """Return the entry with this id, or raise ConfigError."""
    found = next((entry for entry in read_tokens(path) if entry.id == token_id), None)
    if found is None:
        raise ConfigError(f"token file {path} has no token {token_id!r}")
    return found


def revoke_token(path: Path, token_id: str) -> TokenEntry:
    """Remove an entry from the file and leave the rest unchanged."""
    text = _convert(_read(path), path)
    found = next((entry for entry in _parse(text, path) if entry.id == token_id), None)
    if found is None:
        raise ConfigError(f"token file {path} has no token {token_id!r}")
    head, *blocks = text.split(_BLOCK)
    retained = [block for block in blocks if f'"{token_id}"' not in block]
    new = _BLOCK.join([head, *retained])
    if len(_parse(new, path)) != len(blocks) - 1:
        raise ConfigError(f"token file {path}: remove the block with id {token_id} by hand")
    _rewrite(path, new)
    return found
