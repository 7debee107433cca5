"""`make release` without what needs a registry, and the lock of versions that packages, image and CI take."""

import subprocess
from pathlib import Path

import msgspec
import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from deploy.packages.release import LOCK, ROOT, missing_builders, write_sums

pytestmark = pytest.mark.process

PROJECT = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["project"]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def locked() -> list[Requirement]:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def required() -> list[Requirement]:
    """Return what an installation for CI, a package or the image needs."""
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"]]
    for name, rows in extras.items():
        if name not in ("frameworks", "release"):
            texts += rows
    return [found for text in texts if (found := Requirement(text)).name != "rankmend"]


def plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_one_fitting_version_of_all_that_is_required(python: str) -> None:
    environment = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.9",
        "extra": "",
    }
    pinned: dict[str, list[str]] = {}
    for row in locked():
        if row.marker is None or row.marker.evaluate(environment):
            (pin,) = row.specifier
            pinned.setdefault(plain(row.name), []).append(pin.version)

    lacking = [
        str(row)
        for row in required()
        if row.marker is None or row.marker.evaluate(environment)
        if not row.specifier.contains(pinned.get(plain(row.name), ["0"])[0], prereleases=True)
    ]

    assert lacking == [], "run make lock"
    assert {name: pins for name, pins in pinned.items() if len(pins) > 1} == {}


def test_packages_image_and_ci_take_the_lock() -> None:
    for name in ("Makefile", "deploy/Dockerfile", "deploy/packages/build.py"):
        assert "deploy/lock.txt" in (ROOT / name).read_text(encoding="utf-8"), name


def test_sums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"wheel")
    (tmp_path / "a.deb").write_bytes(b"package")

    write_sums(tmp_path)
    write_sums(tmp_path)

    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "a.deb: OK\nb.whl: OK\n"


def test_a_package_that_nothing_here_builds_is_named_with_its_builder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")

    assert missing_builders(["deb", "rpm"]) == ["deb needs dh_builddeb", "rpm needs rpmbuild"]
    assert missing_builders([]) == []
