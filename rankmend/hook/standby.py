"""A process that has imported the framework and waits to become a rank.

`rankmend run --standby torch` keeps one for each rank, and so does a launcher where a fork would break most of what the
ranks import. When ranks are started again, a standby is given the arguments, environment and output of a rank and runs the script in its own main module,
as Python would have: a restart then no longer waits for imports (on CPU they are nine tenths
of it). It has touched no device and opened no file of the job.

Runs under the ranks' interpreter: standard library and Python 3.8 only.
"""

import importlib
import json
import os
import sys

from rankmend.hook import becoming, fork_server, forking, layout


def main():
    """Import, wait for the command, and become a rank.

    Argument: modules with commas between them, or the file of a list that a fork server has tried (an absolute path).
    """
    what = sys.argv[1]
    becoming.show_as((sys.executable, "rankmend.hook.standby", what))
    channel = becoming.take_channel()
    prepared = _prepare(what) if os.path.isabs(what) else _Named(what)
    becoming.load()
    channel.send(layout.STANDS_BY)
    packet, descriptors = becoming.receive(channel)
    if not packet:
        os._exit(0)  # no longer needed
    channel.close()
    rank = forking.ForkedRank(None, os.getppid(), prepared)
    rank.body_fd, *rank.standard = descriptors
    rank.body = becoming.read_body(rank.body_fd)
    rank.attempt = rank.body["env"].get(layout.ENV_ATTEMPT, "")
    forking.carry_the_mark(rank)  # where exec laid it out: later variables lie elsewhere
    forking.take_the_program(rank)
    if prepared.stale() is not None:
        forking.start_afresh(rank.body)
    forking.watch_the_steps(rank)
    forking.follow_the_variables(rank)
    becoming.run(rank.body["argv"])


class _Named:
    """Modules that a person has named, imported. Nobody knows what the ranks do before they import them."""

    environment = ()
    oom_score = None
    expected = None
    first = None
    packages = frozenset()  # type: frozenset[str]

    def __init__(self, names):
        for name in names.split(","):
            importlib.import_module(name)

    def stale(self):
        return None


def _prepare(path):
    """Import what a fork server has tried, for this process alone."""
    with open(path, encoding="ascii") as file:
        reported = json.load(file)
    prepared = fork_server.Prepared(reported, fork_server.become_killed_first())
    prepared.import_to_stand_by()
    return prepared
