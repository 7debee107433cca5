"""Which packages of others rankmend needs, and what to type where one is missing.

An installation without extras brings what a launcher needs, on one node and on many, and what people ask it. What only some
commands need comes with an extra; such a command calls `require` first. tests/test_packages.py compares these tables with
pyproject.toml and with what the modules import.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from typing import Final

from rankmend.errors import MissingPackageError


class Extra(Enum):
    """An extra of rankmend that commands ask for."""

    AGENT = "agent"
    CONTROLLER = "controller"
    INJECT = "inject"
    KUBERNETES = "kubernetes"
    OIDC = "oidc"
    PLOT = "plot"
    POSTGRES = "postgres"
    REPORT = "report"
    TRACES = "traces"


@dataclass(frozen=True, slots=True)
class NeededPackage:
    module: str  # as it is imported
    name: str  # in the index
    use: str  # what needs it


BASE: Final = (
    NeededPackage("aiohttp", "aiohttp", "jobs on many nodes, controller"),
    NeededPackage("click", "click", "every command"),
    NeededPackage("cryptography", "cryptography", "jobs on many nodes, controller"),
    NeededPackage("google_crc32c", "google-crc32c", "checkpoints of Orbax"),
    NeededPackage("isal", "isal", "checkpoints"),
    NeededPackage("msgspec", "msgspec", "every command"),
    NeededPackage("numpy", "numpy", "slow ranks"),
    NeededPackage("prometheus_client", "prometheus-client", "agent, controller"),
    NeededPackage("psutil", "psutil", "run, agent"),
    NeededPackage("rich", "rich", "tables"),
    NeededPackage("urllib3", "urllib3", "clients of an agent or a controller"),
    NeededPackage("xxhash", "xxhash", "snapshots, checkpoints"),
)

EXTRAS: Final = {
    Extra.AGENT: (
        NeededPackage("apscheduler", "apscheduler", "agent, check node"),
        NeededPackage("pynvml", "nvidia-ml-py", "agent, check node"),
    ),
    Extra.CONTROLLER: (
        NeededPackage("jinja2", "jinja2", "console"),
        NeededPackage("markdown_it", "markdown-it-py", "console"),
        NeededPackage("uvloop", "uvloop", "controller run"),
    ),
    Extra.INJECT: (NeededPackage("mfusepy", "mfusepy", "inject io-error, io-hang, disk-full"),),
    Extra.KUBERNETES: (
        NeededPackage("google", "protobuf", "agent-kubernetes"),
        NeededPackage("grpc", "grpcio", "agent-kubernetes"),
        NeededPackage("kubernetes", "kubernetes", "controller run with [kubernetes]"),
        NeededPackage("yaml", "pyyaml", "controller run with [kubernetes] kubeconfig"),
    ),
    Extra.OIDC: (NeededPackage("joserfc", "joserfc", "controller with [oidc]"),),
    Extra.PLOT: (
        NeededPackage(
            "matplotlib", "matplotlib", "diagnose hang --plot, simulate --plot, fabric --plot"
        ),
    ),
    Extra.POSTGRES: (
        NeededPackage("psycopg", "psycopg", "controller with PostgreSQL"),
        NeededPackage("psycopg_pool", "psycopg-pool", "controller with PostgreSQL"),
    ),
    Extra.REPORT: (NeededPackage("jinja2", "jinja2", "report --html"),),
    Extra.TRACES: (NeededPackage("pyarrow", "pyarrow", "diagnose slow, of parquet files"),),
}


def is_installed(package: NeededPackage) -> bool:
    return find_spec(package.module) is not None


def install_line(packages: Sequence[NeededPackage]) -> str:
    """Return what to type for these packages: their names, for nobody knows from where rankmend itself came."""
    return f"pip install {' '.join(package.name for package in packages)}"


def require(extra: Extra, what: str) -> None:
    """Check that the packages of an extra are there. Raises MissingPackageError, which says what to type.

    ``what``: what needs them, as the subject of a sentence.
    """
    missing = [package for package in EXTRAS[extra] if not is_installed(package)]
    if missing:
        raise MissingPackageError(_explain(what, missing))


def explain_missing(module: str | None, what: str) -> str | None:
    """Return what to say where ``what`` can't import this module; None where it is none of rankmend's packages."""
    name = (module or "").partition(".")[0]
    for packages in (BASE, *EXTRAS.values()):
        if found := [package for package in packages if package.module == name]:
            return _explain(what, found)
    return None


def _explain(what: str, missing: Sequence[NeededPackage]) -> str:
    names = " and ".join(package.name for package in missing)
    verb = "is" if len(missing) == 1 else "are"
    return f"{what} needs {names}, which {verb} not installed: {install_line(missing)}"
