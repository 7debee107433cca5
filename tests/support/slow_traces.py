"""Traces of a slow job, and what the command says of them."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from rankmend.cli.diagnosis.diagnose_slow import slow

ONSET_S = 1_700_000_600.0
NODES = ("n0", "n1", "n2", "n3")


def write_trace(path: Path, *, kind: str = "compute", at_s: float | None = ONSET_S - 600) -> Path:
    """Write step records of four ranks on four nodes; rank 2, on n1, is slow from the middle on."""
    lines = ["rank,step,kind,seconds,host" + (",at" if at_s is not None else "")]
    for step in range(40):
        for rank, host in ((0, "n0"), (2, "n1"), (4, "n2"), (6, "n3")):
            took = 1.5 if rank == 2 and step >= 20 else 1.0 + 0.001 * ((step + rank) % 3)
            stamp = "" if at_s is None else f",{at_s + 30 * step}"
            lines.append(f"{rank},{step},{kind},{took},{host}{stamp}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def run_slow(*arguments: str | Path) -> dict[str, Any]:
    got = CliRunner().invoke(slow, [*map(str, arguments), "--json"])
    assert got.exit_code == 0, got.output
    page = json.loads(got.stdout)
    assert isinstance(page, dict)
    return page
