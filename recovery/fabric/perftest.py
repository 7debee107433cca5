"""`ib_write_bw` of perftest as this node has it: where it is, what it knows, and its command line.

Source: https://github.com/linux-rdma/perftest, src/perftest_parameters.c and src/perftest_communication.c, versions 4.4 to 26.04.
"""

import math
import re
import resource
import shutil
from dataclasses import dataclass
from typing import Final

from rankmend.errors import NoSourceError, SourceError
from recovery.fabric.rdma_ports import RailPort
from recovery.fabric.tied_programs import ProgramEnd, TiedPrograms

PROGRAM: Final = "ib_write_bw"
HELP_S_MAX: Final = 20.0
# Beyond the time of sending: it opens the device, waits a second on purpose, pins memory and connects queue pairs.
SETUP_S_MAX: Final = 20.0
_TEXT_MAX: Final = 250
# Its server listens on this address only, from 23.07 on. 4.5 has `--source_ip`, which its parser takes for another option.
_BIND: Final = "--bind_source_ip"
# The same versions meet at IPv6 addresses, where both ends are told so.
_MEET_OVER_IPV6: Final = "--ipv6-addr"
_IPV6_GID: Final = "--ipv6"  # where it chooses the GID itself
_MARK: Final = "--ib-dev"  # an option of every version


@dataclass(frozen=True, slots=True)
class Perftest:
    path: str
    binds: bool  # it can listen on one address
    has_ipv6: bool = False  # it can meet the other end at an IPv6 address

    def words(
        self, port: RailPort, address: str, tcp_port: int, seconds: int, server: str | None
    ) -> list[str]:
        """Return the command line. ``address``: this node's, for the exchange. ``server``: the other end's; None: this end is the server."""
        words = [self.path, "-d", port.device, "-i", str(port.port), "-p", str(tcp_port)]
        words += ["-D", str(seconds), "-F"]  # -F: no word about processors of changing speed
        if port.gid_index is not None:
            words += ["-x", str(port.gid_index)]
        if ":" in address:
            words.append(_MEET_OVER_IPV6)
            words += [_IPV6_GID] if port.is_ethernet and port.gid_index is None else []
        if self.binds:
            words += [_BIND, address]
        return words if server is None else [*words, server]


def find_perftest() -> Perftest:
    """Return the installed program. Raises NoSourceError where it is missing, SourceError where it does not run."""
    path = shutil.which(PROGRAM)
    if path is None:
        raise NoSourceError(f"{PROGRAM} is not installed (Debian, Ubuntu, RHEL: perftest)")
    with TiedPrograms().run([path, "--help"], "") as program:
        end = program.wait(HELP_S_MAX)
    told = end.output + end.errors
    if _MARK not in told:  # --help ends with 1 in some versions
        how = f"ended with {end.code}" if end.code is not None else f"hung for {HELP_S_MAX:g} s"
        raise SourceError(f"{path} is not perftest's {PROGRAM}: --help {how}: {_last_words(told)}")
    known = {
        option: re.search(rf"^\s*{option}\b", told, re.MULTILINE) is not None
        for option in (_BIND, _MEET_OVER_IPV6)
    }
    return Perftest(path, known[_BIND], known[_MEET_OVER_IPV6])


def whole_seconds(seconds: float) -> int:
    """Return for how long it should send: it counts whole seconds."""
    return max(1, math.ceil(seconds))


def failure_of(end: ProgramEnd, limit_s: float) -> str:
    """Return what went wrong, in the program's own last words."""
    told = _last_words(end.errors) if end.errors.strip() else _last_words(end.output)
    if end.code is None:
        return f"{PROGRAM} did not end within {limit_s:.0f} s and was killed; it said last: {told}"
    limit, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    lock = "" if limit == resource.RLIM_INFINITY else f" (ulimit -l here: {limit >> 10} KiB)"
    return f"{PROGRAM} ended with {end.code}: {told}{lock}"


def _last_words(text: str) -> str:
    """Return the last lines as one, as many as fit: the cause stands above the line that says that it failed."""
    kept: list[str] = []
    for line in reversed([line.strip() for line in text.splitlines() if line.strip(" *-\t")]):
        if kept and len(line) + sum(map(len, kept)) > _TEXT_MAX:
            break
        kept.insert(0, line[:_TEXT_MAX])
        if len(kept) == 5:
            break
    return "; ".join(kept) or "nothing"
