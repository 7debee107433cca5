#!/usr/bin/env python3
"""Runs a command in an OCI container by runc, for `rankmend run --rank-prefix`. Needs root.

    rankmend run --nproc-per-node 2 --checkpoint-dir /data/ckpt \\
        --rank-prefix 'python3 runc_rank.py --id {job_id}-{rank}-{attempt} --rootfs /images/pytorch
                       --bind {runtime} --bind /dev/shm --bind /data --cwd {cwd} --' train.py

The bundle is `runc spec`'s own, changed where training needs it: the host's network, for the rendezvous, and no limits of
its own. Other than most tools, runc takes its command from a file, which is why this is a script.
"""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

BUNDLES = Path("/run/runc-rank")  # /run is root's


def make_config(spec: dict, options: argparse.Namespace) -> dict:
    process = spec["process"]
    process["terminal"] = False
    process["args"] = options.command
    process["cwd"] = options.cwd
    process["env"] = [f"PATH={os.environ['PATH']}"]
    process["rlimits"] = []
    process["noNewPrivileges"] = True
    spec["root"] = {"path": options.rootfs, "readonly": False}
    linux = spec["linux"]
    linux.pop("resources", None)
    linux.pop("seccomp", None)
    # Without a network namespace it has the host's network, and without one for IPC its shared memory.
    linux["namespaces"] = [{"type": kind} for kind in ("pid", "mount", "uts")]
    bound = [str(Path(path).absolute()) for path in options.bind]
    spec["mounts"] = [
        one
        for one in spec["mounts"]
        if one["type"] != "cgroup" and one["destination"] not in (*bound, "/dev/mqueue")
    ]
    for path in bound:
        how = {"type": "bind", "source": path, "destination": path, "options": ["rbind", "rw"]}
        spec["mounts"].append(how)
    return spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--id", required=True, help="name of the container: JOB-RANK-ATTEMPT")
    parser.add_argument("--rootfs", required=True, help="folder with the unpacked image")
    parser.add_argument("--bind", action="append", default=[], help="path to show inside, too")
    parser.add_argument("--cwd", default="/", help="working folder inside")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    remove_left(options.id)
    BUNDLES.mkdir(mode=0o700, exist_ok=True)
    bundle = BUNDLES / options.id
    bundle.mkdir()
    subprocess.run(["runc", "spec", "--bundle", str(bundle)], check=True)
    config = bundle / "config.json"
    config.write_text(json.dumps(make_config(json.loads(config.read_text()), options)))
    os.execvp("runc", ["runc", "run", "--bundle", str(bundle), options.id])


def remove_left(name: str) -> None:
    """Remove what earlier attempts have left: a runc that is killed forgets its container and the bundle."""
    of_rank = name.rpartition("-")[0] + "-"
    for left in BUNDLES.glob(f"{of_rank}*"):
        # Without --force it refuses a container that still runs.
        subprocess.run(["runc", "delete", left.name], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(left, ignore_errors=True)


if __name__ == "__main__":
    main()
