"""What a report costs each of several controllers on one PostgreSQL, beside one alone and one on SQLite.

    python bench/several_controllers.py                       # 1 and 3 controllers, 200 launchers each, 2 minutes
    python bench/several_controllers.py --controllers 1 3 --nodes 500

Every controller has a job of its own, with launchers of its own (bench/controller_load.py), and all are on the same database. They
share this machine's cores, so the figure is the CPU time of a report, which the others hardly change: with a core each, several
controllers carry as many times the launchers as they are. Beside it the transactions of the database, whole and for each report:
reports don't touch it. Needs Debian's postgresql.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from yardstick import measure_yardstick

from tests.support.postgres import PostgresServer, running_server

BENCH = Path(__file__).parent
RUN_S_MAX = 300.0


def start(folder: Path, number: int, options: argparse.Namespace, journal: str | None) -> Any:
    command = [sys.executable, str(BENCH / "controller_load.py"), "--parts", "steady"]
    command += ["--nodes", str(options.nodes), "--every", f"{options.every:g}"]
    command += ["--seconds", f"{options.seconds:g}", "--job", f"load-{number}"]
    command += ["--settle", f"{options.settle:g}", "--output", str(folder / f"{number}.json")]
    if journal is not None:
        command += ["--journal", journal]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(
    count: int, options: argparse.Namespace, server: PostgresServer | None
) -> dict[str, object]:
    """Run so many controllers at once; return what a report costs each."""
    name = None if server is None else server.make_database()
    journal = None if server is None or name is None else server.url(name, "controller")
    with tempfile.TemporaryDirectory() as folder:
        running = [start(Path(folder), number, options, journal) for number in range(count)]
        for one in running:
            if one.wait(RUN_S_MAX) != 0:
                sys.exit(f"a controller under load ended with {one.returncode}")
        told = [json.loads((Path(folder) / f"{n}.json").read_text()) for n in range(count)]
    steady = [one["steady"] for one in told]
    return {
        "controllers": count,
        "journal": "SQLite" if server is None else "PostgreSQL",
        "us_per_report": [one["controller_us_per_report"] for one in steady],
        "reports_per_s": [one["reports_per_s"] for one in steady],
    }


def measure_commits(options: argparse.Namespace, server: PostgresServer) -> dict[str, float]:
    """Return the transactions a second of one controller's database at two paces of its launchers."""
    found = {}
    for every_s in (options.every, 5 * options.every):
        name = server.make_database()
        paced = argparse.Namespace(**{**vars(options), "every": every_s})
        with tempfile.TemporaryDirectory() as folder:
            one = start(Path(folder), 0, paced, server.url(name, "controller"))
            time.sleep(options.settle + options.seconds / 2)
            began = count_commits(server, name)
            time.sleep(options.seconds / 3)
            commits = (count_commits(server, name) - began) / (options.seconds / 3)
            one.wait(RUN_S_MAX)
        found[f"{options.nodes / every_s:g} reports a second"] = round(commits, 1)
    return found


def count_commits(server: PostgresServer, name: str) -> int:
    ((count,),) = server.ask(
        "postgres", "SELECT xact_commit FROM pg_stat_database WHERE datname = %s", name
    )
    return int(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--controllers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--nodes", type=int, default=200, help="of each controller")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two reports")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--settle", type=float, default=5.0)
    options = parser.parse_args()
    with running_server() as server:
        told = [measure(1, options, None)]
        told += [measure(count, options, server) for count in options.controllers]
        commits = measure_commits(options, server)
    for one in told:
        print(json.dumps(one))
    print(json.dumps({"transactions a second of the database": commits}))
    print(measure_yardstick())


if __name__ == "__main__":
    main()
