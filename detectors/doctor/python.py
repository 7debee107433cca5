"""Whether this Python and the ranks' have what they need. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detectors.doctor.check import HostCheck, HostPart, HostVerdict, broken, lacking, ok, quoted
from detectors.wording import counted
from rankmend.packages import BASE, EXTRAS, NeededPackage, install_line

HOOK_PYTHON_MIN: Final = (3, 8)


@dataclass(frozen=True, slots=True)
class PythonFacts:
    own: str  # this interpreter
    missing: Sequence[str]  # modules of `rankmend.packages`
    ranks: str  # the interpreter of the ranks
    ranks_error: str = ""
    ranks_version: tuple[int, ...] = ()
    torch: str | None = None  # its version there; None: not installed
    torch_error: str = ""
    has_cuda: bool | None = None  # whether this build of PyTorch has CUDA; None: unknown
    gpus: int = 0


def _packages(facts: PythonFacts) -> HostVerdict:
    if missing := [package for package in BASE if package.module in facts.missing]:
        lost = "; ".join(f"{package.name} ({package.use})" for package in missing)
        names = " ".join(package.name for package in missing)
        return lacking(f"missing: {lost}", f"{quoted(facts.own)} -m pip install {names}")
    # Nothing is lost where nobody wants it: few environments run both the ranks and the agent.
    left_out = [
        f"{install_line(absent)} for {', '.join(_uses(absent))}"
        for packages in EXTRAS.values()
        if (absent := [package for package in packages if package.module in facts.missing])
    ]
    return ok("; ".join((facts.own, *left_out)))


def _uses(packages: Sequence[NeededPackage]) -> dict[str, None]:
    return dict.fromkeys(package.use for package in packages)


def _interpreter(facts: PythonFacts) -> HostVerdict:
    if facts.ranks_error:
        return broken(f"{facts.ranks}: {facts.ranks_error}", "name another with --python")
    version = ".".join(map(str, facts.ranks_version))
    if facts.ranks_version < HOOK_PYTHON_MIN:
        return broken(
            f"{facts.ranks} is Python {version}, too old", "Python 3.8 or newer, by --python"
        )
    return ok(f"{facts.ranks}, Python {version}")


def _torch(facts: PythonFacts) -> HostVerdict:
    install = (
        f"{quoted(facts.ranks)} -m pip install torch  # or name the job's interpreter with --python"
    )
    if facts.ranks_error:
        return broken("the interpreter does not run", "name another with --python")
    if facts.torch is None and facts.torch_error:
        damaged = f"PyTorch in {facts.ranks} is damaged: {facts.torch_error}"
        return broken(damaged, f"{quoted(facts.ranks)} -m pip install --force-reinstall torch")
    if facts.torch is None:
        return lacking(f"not in {facts.ranks}", install)
    if facts.has_cuda is False and facts.gpus:
        return lacking(
            f"PyTorch {facts.torch} was built without CUDA, and this host has {counted(facts.gpus, 'GPU')}",
            "install the build for CUDA: https://pytorch.org/get-started",
        )
    return ok(f"PyTorch {facts.torch}")


_P: Final = HostPart.PYTHON
PYTHON_CHECKS: Final[tuple[HostCheck[PythonFacts], ...]] = (
    HostCheck(
        "python_packages", _P, "rankmend's packages", "the commands that need them", _packages
    ),
    HostCheck("python_ranks", _P, "interpreter of ranks", "the start of ranks", _interpreter),
    HostCheck(
        "python_torch",
        _P,
        "PyTorch",
        "jobs that need it; steps that are counted without a change to the script",
        _torch,
    ),
)
