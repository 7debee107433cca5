"""A folder with the wheels from which this environment was installed, packed again from their RECORDs.

The package's build then needs no registry, and tests the very files that PyPI has given the tests.
"""

import base64
import hashlib
import importlib.metadata
import zipfile
from collections.abc import Iterable
from pathlib import Path

import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_BY_PIP = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")


def fill_wheelhouse(folder: Path, project: Path, extras: Iterable[str]) -> None:
    """Put the wheels there that a project needs to be built and installed with these extras."""
    parsed = tomli.loads(project.read_text(encoding="utf-8"))
    optional = parsed["project"].get("optional-dependencies", {})
    waiting = [*parsed["build-system"]["requires"], *parsed["project"]["dependencies"]]
    waiting += [line for extra in extras for line in optional.get(extra, ())]
    own = parsed["project"]["name"]
    done: set[str] = set()
    while waiting:
        wanted = Requirement(waiting.pop())
        if wanted.name == own:
            waiting += [line for extra in wanted.extras for line in optional.get(extra, ())]
            continue
        name = canonicalize_name(wanted.name)
        if name in done or not _applies(wanted, ("",)):
            continue
        done.add(name)
        found = importlib.metadata.distribution(name)
        _pack(found, folder)
        needed = (Requirement(line) for line in found.requires or ())
        waiting += [str(one) for one in needed if _applies(one, ("", *wanted.extras))]


def _applies(wanted: Requirement, extras: Iterable[str]) -> bool:
    return wanted.marker is None or any(wanted.marker.evaluate({"extra": one}) for one in extras)


def _pack(found: importlib.metadata.Distribution, folder: Path) -> None:
    tags = [
        line.removeprefix("Tag: ").split("-")
        for line in (found.read_text("WHEEL") or "").splitlines()
        if line.startswith("Tag: ")
    ]
    tag = "-".join(".".join(dict.fromkeys(tag[part] for tag in tags)) for part in range(3))
    stem = f"{canonicalize_name(found.metadata['Name']).replace('-', '_')}-{found.version}"
    record = ""
    record_name = ""
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w", zipfile.ZIP_STORED) as wheel:
        for file in found.files or ():
            is_about = len(file.parts) == 2 and file.parts[0].endswith(".dist-info")
            if is_about and file.name == "RECORD":
                record_name = str(file)
            is_made = is_about and file.name in _BY_PIP
            if file.parts[0] == ".." or file.suffix == ".pyc" or is_made:
                continue
            content = Path(str(file.locate())).read_bytes()
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            )
            wheel.writestr(str(file), content)
            record += f"{file},sha256={digest},{len(content)}\n"
        wheel.writestr(record_name, f"{record}{record_name},,\n")
