"""What one exchange between launchers costs: the question of a peer and its answer, proofs included.

python bench/lease.py [EXCHANGES]
"""

import asyncio
import subprocess
import sys
import time

from recovery.launcher.membership.peer_launchers import Peers, PeerWord
from recovery.launcher.rendezvous.ports import read_default_range
from recovery.messages.exchange import Endpoint, Peer

AT_ONCE = 50


def make(node: str) -> Peers:
    word = PeerWord("job", node, f"launcher-{node}", 3, 0)
    return Peers("5" * 64, word, "127.0.0.1", read_default_range(), "127.0.0.1")


def ask(port: int, count: int) -> None:
    asking = make("a")
    peer = Peer("b", "launcher-b", Endpoint("127.0.0.1", port))

    async def run() -> None:
        for _ in range(count // AT_ONCE):
            told = await asyncio.gather(*(asking._query(peer, 3) for _ in range(AT_ONCE)))
            assert all(told)

    began_s = time.monotonic()
    asyncio.run(run())
    print(f"{count / (time.monotonic() - began_s):.0f} exchanges a second")
    asking.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    answering = make("b")
    answering.start()
    argv = [sys.executable, __file__, str(count), str(answering.endpoint.port)]
    began_s = time.process_time()
    subprocess.run(argv, check=True)
    print(f"{(time.process_time() - began_s) / count * 1e3:.3f} ms of CPU for an answer")
    answering.close()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        ask(int(sys.argv[2]), int(sys.argv[1]))
    else:
        main()
