"""Packs what is known of one incident into one file for a person or a vendor, without secrets.

Reads a job's state folder: its journal and the incident's evidence. Everything goes through the
scrubber; flight-recorder dumps, which are pickles, are written as JSON for it (`rankmend diagnose
hang` reads both). The manifest lists what is left out, and why.
"""

import contextlib
import hashlib
import io
import json
import os
import platform
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec

from detectors.formats.plain_pickle import load_plain, refuse_endless
from detectors.job_log.verdict import log_page
from rankmend.errors import ConfigError, RankmendError, SourceError
from rankmend.files import replacing
from recovery.checkpoints.marks import BESIDE
from recovery.journal.folder.job_folder import read_json
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.narration.narrator import details, narrate
from recovery.journal.records import Entry, kind_of
from recovery.launcher.evidence.output_verdict import judge_saved
from recovery.launcher.evidence.surroundings import read_agent_findings
from recovery.local.report.scrub import Scrubber, shown_environment
from recovery.service.meeting_secret import Identity

_BYTES_MAX: Final = 64 * 1024
_FILES_MAX: Final = 256
_SITE: Final = Path("/etc/rankmend/controller")
_TOKEN_OPTIONS: Final = ("--token-file", "--token_file")
_FOLDER_OPTIONS: Final = ("--checkpoint-dir", "--checkpoint_dir")

VERSION: Final = 1
FILE_BYTES_MAX: Final = 64 << 20  # as the evidence of one attempt may be in all
TOTAL_BYTES_MAX: Final = 256 << 20  # unpacked: what mail and ticket systems still take, packed
FILES_MAX: Final = 2000
_ENVIRON_BYTES_MAX: Final = 1 << 20
_FACT_BYTES_MAX: Final = 65536
_PACKAGES: Final = ("rankmend", "torch", "numpy", "msgspec", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
_FACTS: Final = {
    "kernel": "/proc/version",
    "kernel command line": "/proc/cmdline",
    "memory": "/proc/meminfo",
    "load": "/proc/loadavg",
    "pressure of memory": "/proc/pressure/memory",
    "nvidia driver": "/proc/driver/nvidia/version",
    "amdgpu driver": "/sys/module/amdgpu/version",
}


def find_secrets(
    folder: Path,
    environments: Sequence[Mapping[str, str]],
    command_line: Sequence[str],
    site: Path = _SITE,
) -> tuple[str, ...]:
    """Return rankmend's secrets that this user may read here, so that a bundle can leave them out by their value.

    ``command_line`` is the launcher's, ``folder`` the job's state folder.
    `recovery.local.report.scrub` knows the shape of tokens (`rm_ID_SECRET`); a site's own token
    file holds any text, and a job's secret is 64 digits like any hash. An unreadable file is no
    error: what this user can't read is in none of the user's files either.
    """
    found: list[str] = []
    for path in _token_files(environments, command_line, site):
        found += _read_secret(path).split()
    for option in _FOLDER_OPTIONS:
        for name in _values(command_line, option):
            found += _secrets_in(Path(name) / BESIDE / "host.json")
    found += _secrets_in(folder / "service.json")
    return tuple(dict.fromkeys(found))


def _token_files(
    environments: Sequence[Mapping[str, str]], command_line: Sequence[str], site: Path
) -> Iterator[Path]:
    for environment in environments:
        if name := environment.get("RANKMEND_TOKEN_FILE"):
            yield Path(name)
    for option in _TOKEN_OPTIONS:
        yield from map(Path, _values(command_line, option))
    with contextlib.suppress(OSError):
        yield from sorted([*site.glob("*.token"), *site.glob("*.secret")])[:_FILES_MAX]


def _values(words: Sequence[str], option: str) -> Iterator[str]:
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option and equals:
            yield value
        elif word == option and place + 1 < len(words):
            yield words[place + 1]


def _secrets_in(path: Path) -> Iterator[str]:
    """Yield the secret of a note or of a job that a service keeps, and the token that follows from it."""
    try:
        reported = json.loads(_read_secret(path))
    except ValueError:
        return
    secret = reported.get("secret") if isinstance(reported, dict) else None
    if isinstance(secret, str) and secret:
        yield secret
        yield Identity(secret).token


def _read_secret(path: Path) -> str:
    """Return the text of a small plain file, or nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return file.read(_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Packed:
    """One file of the bundle."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """The packed files and the path of the bundle."""

    file: str
    incident_id: str
    size_bytes: int  # size of the file
    files: tuple[Packed, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    path: str  # in the bundle
    read: Callable[[], bytes]


def make_bundle(
    folder: Path,
    entries: Sequence[Entry],
    output: Path,
    environment: Mapping[str, str],
    made_unix_s: float,
    on_file: Callable[[int, int], None] = lambda _done, _all: None,
) -> Bundle:
    """Write the bundle of the incident whose story ``entries`` are, and return what is in it.

    ``folder`` is the job's state folder; ``on_file`` receives how many of how many files are done.
    """
    incident_id = next(
        e.record.incident_id for e in entries if isinstance(e.record, IncidentOpened)
    )
    running = _launcher_environment(folder)
    own = find_secrets(folder, (environment, running), _launcher_command(folder))
    scrubber = Scrubber((environment, running), environment.get("HOME", ""), own)
    sources = list(_sources(folder, incident_id, entries, environment, running, scrubber))
    packed: list[Packed] = []
    left_out = [f"{item.path}: more than {FILES_MAX} files" for item in sources[FILES_MAX:]]
    total = 0
    with (
        replacing(output, ConfigError, durable=False) as file,
        tarfile.open(fileobj=file, mode="w:gz") as archive,
    ):
        for number, source in enumerate(sources[:FILES_MAX], start=1):
            try:
                body = source.read()
            except (OSError, RankmendError, ValueError, RecursionError) as error:
                left_out.append(f"{source.path}: {scrubber.scrub(str(error))}")
                continue
            if len(body) > FILE_BYTES_MAX or total + len(body) > TOTAL_BYTES_MAX:
                left_out.append(f"{source.path}: {len(body)} bytes exceed the limit")
                continue
            total += len(body)
            _add(archive, source.path, body, made_unix_s)
            packed.append(Packed(source.path, len(body), hashlib.sha256(body).hexdigest()))
            on_file(number, len(sources))
        manifest = {
            "version": VERSION,
            "incident": incident_id,
            "made_unix_s": made_unix_s,
            "files": [asdict(item) for item in packed],
            "left_out": left_out,
        }
        _add(archive, "manifest.json", _json(manifest), made_unix_s)
    size_bytes = output.stat().st_size
    return Bundle(str(output), incident_id, size_bytes, tuple(packed), tuple(left_out))


def _sources(
    folder: Path,
    incident_id: str,
    entries: Sequence[Entry],
    environment: Mapping[str, str],
    running: Mapping[str, str],
    scrubber: Scrubber,
) -> Iterator[_Source]:
    """Yield what the bundle holds, the most important first: the bounds cut off the rest."""

    def text(path: str, make: Callable[[], str]) -> _Source:
        return _Source(path, lambda: scrubber.scrub(make()).encode())

    def value(path: str, make: Callable[[], object]) -> _Source:
        return _Source(path, lambda: _json(scrubber.scrub_value(make())))

    opened = next(e.record for e in entries if isinstance(e.record, IncidentOpened))
    yield text("why.txt", lambda: _story(entries))
    yield value("journal.json", lambda: [_entry(entry) for entry in entries])
    yield value("versions.json", _versions)
    yield value("node.json", _node_facts)
    yield value(
        "configuration.json",
        lambda: {
            "policy": msgspec.to_builtins(opened.policy),
            "job": read_json(folder / "job.json"),
            "run": read_json(folder / "run.json"),
        },
    )
    reported = {"this shell": environment, "launcher": running}
    yield _Source(
        "environment.json",
        lambda: _json({name: shown_environment(item, scrubber) for name, item in reported.items()}),
    )
    yield value("agent-findings.json", lambda: _parse_json(read_agent_findings()))
    for attempt in sorted((folder / "incidents" / incident_id).glob("attempt-*")):
        yield value(f"log-verdict-{attempt.name}.json", lambda at=attempt: _log_verdict(folder, at))  # type: ignore[misc]
    for path in sorted((folder / "incidents" / incident_id).rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        name = f"evidence/{path.relative_to(folder / 'incidents' / incident_id)}"
        if path.suffix == ".pkl":
            yield value(f"{name[:-4]}.json", lambda path=path: _load_dump(path))  # type: ignore[misc]
        else:
            yield text(name, lambda path=path: _read(path).decode("utf-8", "replace"))  # type: ignore[misc]


def _log_verdict(folder: Path, attempt: Path) -> object:
    """Return the diagnosis of the ranks' output, as `rankmend diagnose log --json` prints it."""
    number = attempt.name.removeprefix("attempt-")
    verdict = judge_saved(attempt, folder, int(number) if number.isdecimal() else 0)
    return {"decision": "unknown"} if verdict is None else log_page(verdict, ())


def _load_dump(path: Path) -> Any:
    value = load_plain(_read(path))
    refuse_endless(value)
    return value


def _story(entries: Sequence[Entry]) -> str:
    lines = []
    for entry in entries:
        if (line := narrate(entry.record)) is not None:
            since_s = entry.unix_s - entries[0].unix_s
            lines.append(f"+{since_s:8.3f} s  #{entry.number:<5}{line}")
            lines += [f"{'':19}{detail}" for detail in details(entry.record)]
    return "\n".join((*lines, ""))


def _entry(entry: Entry) -> dict[str, object]:
    return {
        "number": entry.number,
        "unix_s": entry.unix_s,
        "monotonic_s": entry.monotonic_s,
        "boot_id": entry.boot_id,
        "kind": kind_of(entry.record),
        "record": msgspec.to_builtins(entry.record),
    }


def _versions() -> dict[str, object]:
    versions: dict[str, object] = {"python": sys.version, "kernel": platform.release()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _node_facts() -> dict[str, object]:
    facts: dict[str, object] = {"name": platform.node(), "machine": platform.machine()}
    facts["processors"] = os.cpu_count()
    for name, path in _FACTS.items():
        with suppress(OSError), Path(path).open("rb") as file:
            facts[name] = file.read(_FACT_BYTES_MAX).decode("utf-8", "replace").strip()
    return facts


def _launcher_environment(folder: Path) -> dict[str, str]:
    """Return what the job's launcher was started with, while it runs and this user may look."""
    words = (item.partition(b"=") for item in _of_launcher(folder, "environ"))
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, _equals, value in words
    }


def _launcher_command(folder: Path) -> list[str]:
    return [word.decode("utf-8", "replace") for word in _of_launcher(folder, "cmdline")]


def _of_launcher(folder: Path, name: str) -> list[bytes]:
    """Return the words of a file of /proc about the job's launcher; none where it is gone or another user's."""
    try:
        run = read_json(folder / "run.json") or {}
        pid = run.get("pid")
        if not isinstance(pid, int):
            return []
        with Path(f"/proc/{pid}/{name}").open("rb") as file:
            body = file.read(_ENVIRON_BYTES_MAX)
    except (OSError, RankmendError):
        return []
    return [item for item in body.split(b"\0") if item]


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise SourceError(f"the agent's findings are not JSON: {error}") from error


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(FILE_BYTES_MAX + 1)


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, default=str).encode()


def _add(archive: tarfile.TarFile, name: str, body: bytes, made_unix_s: float) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(body), 0o600, int(made_unix_s)
    archive.addfile(info, io.BytesIO(body))
