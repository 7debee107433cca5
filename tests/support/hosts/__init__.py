"""Several hosts on this one machine, with real links and real faults, each of which is undone.

    from tests.support.hosts import Fleet, why_not
    from tests.support.faults.process import kill

    pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(why_not()), reason=why_not())]

    with Fleet(4, tmp_path) as fleet:  # up in about 0.2 s; docs/internals/testing-hosts.md has the rest
        h1, h2 = fleet["h1"], fleet["h2"]
        server = h1.popen([sys.executable, "-m", "http.server", "8000"], stdout=subprocess.DEVNULL)
        h2.run(["curl", "-s", "http://h1:8000/"])  # output as text; AssertionError when it fails
        with h1.network():  # sockets that the test itself makes here are the host's
            urllib.request.urlopen(f"http://{h2.address}:9476/metrics", timeout=10)

        with fleet.partition([h1]):  # h1 and the rest don't reach each other within the block
            ...
        fault = fleet.cut(h2)  # or without a block: until fault.end(), at the latest the fleet's end
        kill(server)  # server.pid is its pid out here, server.wait() its real exit status
        with h1.power_off():  # no farewell to anybody; boots at the end, with a new boot id
            ...

`fleet.shared` is one folder for all, `host.state` its own disk: each at the same path inside and outside.
Host and fleet end with the test process, however that ends.
"""

from tests.support.hosts.fleet import Fleet, Host, HostError, Process, why_not

__all__ = [
    "Fleet",
    "Host",
    "HostError",
    "Process",
    "why_not",
]
