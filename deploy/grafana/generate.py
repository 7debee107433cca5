"""Writes the dashboards for Grafana as JSON, from the tables of panels beside this file.

    python deploy/grafana/generate.py

Needs the Grafana Foundation SDK (`pip install '.[dashboards]'`, Python 3.11 or newer). Run it after a change;
tests/deploy/test_dashboards.py compares what is there with the code.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from grafana_foundation_sdk.builders.dashboard import Dashboard  # noqa: E402
from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402

from deploy.grafana.fleet import fleet  # noqa: E402
from deploy.grafana.goodput import goodput  # noqa: E402
from deploy.grafana.incidents import incidents  # noqa: E402
from deploy.grafana.job import job  # noqa: E402
from deploy.grafana.node import node  # noqa: E402

FOLDER: Final = "deploy/grafana/dashboards"
DASHBOARDS: Final[dict[str, Callable[[], Dashboard]]] = {
    "fleet": fleet,
    "node": node,
    "job": job,
    "incidents": incidents,
    "goodput": goodput,
}


def dashboard_text(name: str) -> str:
    """Return a dashboard as Grafana imports it; its panels are numbered in their order."""
    made = json.loads(json.dumps(DASHBOARDS[name]().build(), cls=JSONEncoder))
    for number, panel in enumerate(made["panels"], 1):
        panel["id"] = number
        for letter, target in zip("ABCDEFGH", panel.get("targets", ()), strict=False):
            target["refId"] = letter
    return json.dumps(made, indent=1, sort_keys=True) + "\n"


def main() -> None:
    for name in DASHBOARDS:
        path = ROOT / FOLDER / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dashboard_text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
