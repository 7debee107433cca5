"""The same order to many launchers: from the record in the journal until the last one has it.

    python bench/fanout.py [--nodes 500 1000 2000] [--rounds 5] [--controller-core 0 --generator-core 1]

Each launcher holds a long poll over real TLS and HTTP and reports every EVERY seconds beside. In each round a
person restarts the job, so that all are told to stop, and once all are empty, to start. The generator and the
controller are those of controller_fleet.py.
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
from pathlib import Path

import psutil
import uvloop
from controller_fleet import Fleet, Server, raise_descriptors
from controller_load import measure_orders


async def measure(options: argparse.Namespace, server: Server) -> dict[str, object]:
    fleet = Fleet(options, server.port, server.folder)
    await fleet.start()
    await fleet.run_through(1)
    rounds = []
    for number in range(options.rounds):
        await asyncio.sleep(2.0)  # the attempt is verified
        rounds.append(await measure_orders(fleet, server, number + 2))
    await fleet.stop()
    told: dict[str, object] = {"nodes": options.nodes, "rounds": rounds}
    for name in ("stop_from_journal_s", "start_from_journal_s"):
        for share in ("half", "all"):
            values = [one[name][share] for one in rounds]
            told[f"{name[:-2]}_{share}_s"] = {
                "best": min(values),
                "median": round(statistics.median(values), 3),
                "worst": max(values),
            }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[500, 1000, 2000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two reports")
    parser.add_argument("--controller-core", type=int, help="the only one it may use")
    parser.add_argument("--generator-core", type=int)
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and the controller with us
    told = []
    for nodes in options.nodes:
        raise_descriptors(nodes)
        with tempfile.TemporaryDirectory() as base:
            server = Server(Path(base), options.controller_core)
            if options.generator_core is not None:
                psutil.Process().cpu_affinity([options.generator_core])
            try:
                one = argparse.Namespace(
                    nodes=nodes,
                    spares=0,
                    ranks=8,
                    every=options.every,
                    rounds=options.rounds,
                    job="load",
                )
                told.append(uvloop.run(measure(one, server)))
            finally:
                server.close()
        shown = {key: value for key, value in told[-1].items() if key != "rounds"}
        print(json.dumps(shown))
    if options.output is not None:
        options.output.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
