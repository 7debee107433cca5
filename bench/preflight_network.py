"""How often the network check of a pre-flight check names the node behind a slow cable, and how often it accuses a sound one.

    python -m bench.preflight_network              # 20 slow cables, one at a time, and 5 sound networks: 5 minutes on 2 cores
    python -m bench.preflight_network --slow 3 --sound 1 --json

Eight hosts are network namespaces of this machine whose cables tc limits; one carries a quarter of what the others do. Each host runs what
`rankmend preflight job --network` runs. Needs root and iproute2.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from detectors.preflight.answers import read_answers
from detectors.preflight.verdicts import CheckStanding
from rankmend.parts_path import program
from recovery.lab.fabric.flight_child import FlightShare
from tests.support.hosts import Fleet, Host, why_not

NODES: Final = 8
LINK_BYTES_PER_S: Final = 4e6  # far below what a busy processor moves, so that the cables decide
SLOW_BYTES_PER_S: Final = 1e6
SEND_BUFFER_BYTES: Final = 65_536  # a slow cable is empty soon after a test


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slow", type=int, default=20, help="checks with one slow cable")
    parser.add_argument("--sound", type=int, default=5, help="checks of a sound network")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    named = accused = judged = silent = 0
    with tempfile.TemporaryDirectory() as folder, Fleet(NODES, Path(folder)) as fleet:
        hosts = list(fleet)
        for host in hosts:
            sizes = f"net.ipv4.tcp_wmem=4096 {SEND_BUFFER_BYTES} {SEND_BUFFER_BYTES}"
            host.run(["sysctl", "-q", "-w", sizes])
        for number in range(asked.slow + asked.sound):
            bad = hosts[number % NODES] if number < asked.slow else None
            with limited(fleet, bad):
                told = check(fleet, number)
            for name, standing in told.items():
                is_bad = bad is not None and name == bad.name
                silent += standing not in (CheckStanding.FAILED, CheckStanding.PASSED)
                named += is_bad and standing is CheckStanding.FAILED
                judged += not is_bad
                accused += not is_bad and standing is CheckStanding.FAILED
            print(f"{number + 1}: {bad.name if bad else 'sound'}", file=sys.stderr, flush=True)
    found = {"slow": asked.slow, "named": named, "sound": judged, "accused": accused, "silent": silent}  # fmt: skip
    if asked.json:
        print(json.dumps(found))
        return
    print(f"nodes behind a slow cable that were named: {named} of {asked.slow}")
    print(f"sound nodes that were accused: {accused} of {judged}")
    print(f"nodes that got no answer: {silent}")


@contextlib.contextmanager
def limited(fleet: Fleet, bad: Host | None) -> Iterator[None]:
    good = [host for host in fleet if host is not bad]
    with contextlib.ExitStack() as stack:
        stack.enter_context(fleet.slow(*good, bytes_per_s=LINK_BYTES_PER_S))
        if bad is not None:
            stack.enter_context(fleet.slow(bad, bytes_per_s=SLOW_BYTES_PER_S))
        yield


def check(fleet: Fleet, number: int) -> dict[str, CheckStanding]:
    """Return how the network check of each host ended."""
    meet = fleet.shared / f"meet-{number}"
    meet.mkdir(mode=0o700)
    processes = {}
    for at, host in enumerate(fleet):
        share = FlightShare(host.name, 25.0, 55.0, ("eth0",), str(meet), NODES, at)
        words = [sys.executable, *program("recovery.lab.fabric.flight_child")]
        asked = msgspec.json.encode(share).decode()
        processes[host.name] = host.popen([*words, asked], stdout=subprocess.PIPE)
    found = {}
    for name, process in processes.items():
        lines = map(json.loads, process.communicate()[0].splitlines())
        standings = [one.standing for one in read_answers(lines, "").verdicts]
        found[name] = standings[0] if standings else CheckStanding.SILENT
    return found


if __name__ == "__main__":
    main()
