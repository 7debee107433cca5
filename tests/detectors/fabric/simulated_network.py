"""A network whose tests give what a planted fault would make of them, and noise."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from detectors.fabric.fabric_verdict import FabricVerdict
from detectors.fabric.network import Network, PairTest, Reading
from detectors.fabric.slow_part import judge
from detectors.fabric.slow_search import plan

Fault = Callable[[int, int, int, int], float]  # sender, receiver, rail, path -> share of the rate
USUAL_BYTES_PER_S = 40e9


def make_network(nodes: int, *, rails: int = 1, per_leaf: int = 0) -> Network:
    names = tuple(f"n{number}" for number in range(nodes))
    leaf_of = {name: f"leaf{at // per_leaf}" for at, name in enumerate(names)} if per_leaf else {}
    return Network(names, tuple(f"rail{rail}" for rail in range(rails)), leaf_of)


@dataclass
class SimulatedNetwork:
    network: Network
    seed: int
    fault: Fault = lambda _s, _r, _rail, _path: 1.0
    spread: float = 0.06  # of the rate from test to test
    accidents: float = 0.02  # share of tests that something else slows down
    readings: list[Reading] = field(default_factory=list)
    rounds: int = 0

    def search(self, *, all_pairs: bool = False) -> FabricVerdict:
        """Run a whole search and return its verdict."""
        random = Random(self.seed)
        while tests := plan(self.network, self.readings, self.rounds, all_pairs=all_pairs):
            busy = [node for test in tests for node in (test.low, test.high)]
            assert len(busy) == len(set(busy)), "a node is in two tests at once"
            for test in tests:
                self.readings += self._measure(test, random)
            self.rounds += 1
        return judge(self.network, self.readings)

    def _measure(self, test: PairTest, random: Random) -> list[Reading]:
        return [
            Reading(
                round=self.rounds,
                sender=sender,
                receiver=receiver,
                rail=rail,
                path=test.path,
                bytes_per_s=USUAL_BYTES_PER_S
                * self.fault(sender, receiver, rail, test.path)
                * max(0.1, random.gauss(1.0, self.spread))
                * (random.uniform(0.2, 0.7) if random.random() < self.accidents else 1.0),
            )
            for sender, receiver in ((test.low, test.high), (test.high, test.low))
            for rail in range(len(self.network.rails))
        ]
