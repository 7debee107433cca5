"""How large the topology file of a fleet is, and what it takes to write, to read and to blame by it.

    python bench/topology_size.py --nodes 12500 --rails 8

A fat tree of rails, as ibnetdiscover would print it: 32 nodes below a leaf switch of each rail, 32 spines above it, and Slurm's blocks of 18 nodes. Each step is a
process of its own; the commands are those that a person would type.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

NODES_OF_LEAF: Final = 32
SPINES: Final = 32  # of each rail
NODES_OF_BLOCK: Final = 18
_MEASURED: Final = """
import json, os, resource, sys
def held():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
from rankmend.parts_path import put_on_path
put_on_path()
from recovery.service.controller_config import Discovery
from recovery.service.discovery import read_fleet_parts
before_mb, began = held(), os.times()
parts = read_fleet_parts(Discovery(topology_file=sys.argv[1]))
ended = os.times()
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
print(json.dumps({"cpu_s": round(ended.user - began.user, 2), "kept_mb": round(held() - before_mb), "peak_mb": round(peak_mb), "nodes": len(parts.on)}))
"""


def name_of(node: int) -> str:
    return f"gpu-{node // NODES_OF_BLOCK + 1:04d}-{node % NODES_OF_BLOCK + 1:02d}"


def describe_subnet(nodes: int, rails: int) -> Iterator[str]:
    """Yield the lines of ibnetdiscover."""
    groups = -(-nodes // NODES_OF_LEAF)
    for rail in range(rails):
        for group in range(groups):
            yield f'Switch\t64 "S-5{group:011x}{rail:04x}"\t\t# "leaf-su{group + 1:03d}-r{rail}"'
            for at in range(NODES_OF_LEAF):
                node = group * NODES_OF_LEAF + at
                if node < nodes:
                    yield f'[{at + 1}]\t"H-7{node:011x}{rail:04x}"[1]'
            for spine in range(SPINES):
                yield f'[{NODES_OF_LEAF + spine + 1}]\t"S-6{spine:011x}{rail:04x}"[{group + 1}]'
            yield ""
        for spine in range(SPINES):
            yield f'Switch\t512 "S-6{spine:011x}{rail:04x}"\t\t# "spine-r{rail}-{spine + 1:02d}"'
            yield ""
        for node in range(nodes):
            yield f'Ca\t1 "H-7{node:011x}{rail:04x}"\t\t# "{name_of(node)} mlx5_{rail}"'
            yield f'[1]\t"S-5{node // NODES_OF_LEAF:011x}{rail:04x}"[{node % NODES_OF_LEAF + 1}]'
            yield ""


def describe_blocks(nodes: int) -> Iterator[str]:
    for block in range(nodes // NODES_OF_BLOCK):
        yield f"BlockName=rack{block + 1:04d} Nodes=gpu-{block + 1:04d}-[01-{NODES_OF_BLOCK}]"


def run_command(*words: str) -> dict[str, object]:
    """Run a command of rankmend; return what it took and what it said."""
    with TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, "-m", "rankmend.cli", *words], stdout=said, stderr=said)  # fmt: skip
        _pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return {
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
            "peak_mb": round(usage.ru_maxrss / 1e3),
            "exit_code": process.returncode,
            "said": said.read().strip(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--rails", type=int, default=8)
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        cables, conf, target = folder / "ib.txt", folder / "topology.conf", folder / "topology.json"
        cables.write_text("\n".join(describe_subnet(options.nodes, options.rails)))
        conf.write_text("\n".join(describe_blocks(options.nodes)))
        told: dict[str, object] = {"nodes": options.nodes, "rails": options.rails}
        told["write"] = run_command("fabric", "topology", "--ibnetdiscover", str(cables), "--slurm", str(conf), "-o", str(target))  # fmt: skip
        told["edges"] = sum(1 for line in target.open() if line.startswith('  {"below"'))
        told["file_mb"] = round(target.stat().st_size / 1e6, 1)
        told["blame"] = run_command("fabric", "blame", "--topology", str(target), "--by", "network", f"gpu-0007-[01-{NODES_OF_BLOCK}]")  # fmt: skip
        read = subprocess.run([sys.executable, "-c", _MEASURED, str(target)], capture_output=True, text=True, check=True)  # fmt: skip
        told["controller reads it"] = json.loads(read.stdout)
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
