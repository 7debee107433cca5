"""A process that has imported the framework and waits to become a rank.

`rankmend run --standby torch` keeps one for each rank. When ranks are started again, a standby is
given the arguments, environment and output of a rank and runs the script in its own main module,
as Python would have: a restart then no longer waits for imports (on CPU they are nine tenths
of it). It has touched no device and opened no file of the job.

Runs under the ranks' interpreter: standard library and Python 3.8 only.
"""

import importlib
import os
import socket
import sys

from rankmend.hook import becoming, layout


def main():
    """Import the named modules, wait for the command, and become a rank."""
    path, modules = sys.argv[1:3]
    becoming.show_as((sys.executable, "rankmend.hook.standby", path, modules))
    for name in modules.split(","):
        importlib.import_module(name)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.connect(path)
    packet, descriptors = becoming.receive(channel)
    if not packet:
        os._exit(0)  # no longer needed
    body_fd, *standard = descriptors
    body = becoming.read_body(body_fd)
    becoming.take_standard(standard)
    os.close(body_fd)
    channel.close()
    environment = body["env"]
    becoming.write_mark(environment.get(layout.ENV_ATTEMPT, ""))
    becoming.show_as(body["argv"])
    becoming.take_environment(environment)
    os.chdir(body["cwd"])
    becoming.bind(body.get("cpus"))
    becoming.watch_steps()
    becoming.run(body["argv"])
