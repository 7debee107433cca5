"""A fabric test on hosts out of namespaces, with links that all carry the same, and faults of some."""

import json
import subprocess
import sys
from typing import Any

import msgspec

from recovery.fabric.fabric_report import FabricReport
from tests.support.hosts.fleet import ROOT

LIMIT_S = 240


def run_on(pids: list[int], address: str, kind: str, **options: Any) -> FabricReport:
    """Return the first node's report; AssertionError with what nodes said where one failed."""
    order = {"pids": pids, "address": address, "kind": kind, "seconds": 0.3, **options}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.fabric_nodes"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=FabricReport)
