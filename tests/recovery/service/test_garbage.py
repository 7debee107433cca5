"""When the controller's service looks for cycles of dead objects."""

from recovery.service.daemon import Cycles, read_resident_bytes

MIB = 1024 * 1024


class Memory:
    """What a process holds, and what of it a look for cycles frees."""

    def __init__(self, held: int) -> None:
        self.held, self.dead, self.looks = held, 0, 0

    def read(self) -> int:
        return self.held

    def collect(self) -> None:
        self.looks += 1
        self.held, self.dead = self.held - self.dead, 0


def test_memory_that_does_not_grow_is_never_looked_through() -> None:
    memory = Memory(400 * MIB)
    cycles = Cycles(memory.read, memory.collect)

    for _second in range(3600):
        assert not cycles.look()

    assert memory.looks == 0


def test_a_small_service_is_looked_at_once_it_has_grown_by_128_mib() -> None:
    memory = Memory(60 * MIB)
    cycles = Cycles(memory.read, memory.collect)

    memory.held = 188 * MIB - 1
    assert not cycles.look()
    memory.held += 1
    assert cycles.look()


def test_a_large_service_is_looked_at_once_it_has_grown_by_half() -> None:
    memory = Memory(1600 * MIB)
    cycles = Cycles(memory.read, memory.collect)

    memory.held = 2400 * MIB - 1
    assert not cycles.look()
    memory.held += 1
    assert cycles.look()
    assert not cycles.look()  # what is still there is in use


def test_cycles_hold_no_more_than_half_however_long_connections_come_and_go() -> None:
    memory = Memory(1000 * MIB)
    cycles = Cycles(memory.read, memory.collect)
    most = 0

    for _second in range(1000):
        memory.held += 10 * MIB
        memory.dead += 10 * MIB
        most = max(most, memory.dead)
        cycles.look()

    assert most <= 500 * MIB
    assert memory.looks == 20


def test_memory_that_was_given_back_may_not_be_filled_with_cycles_unseen() -> None:
    memory = Memory(2000 * MIB)
    cycles = Cycles(memory.read, memory.collect)

    memory.held = 100 * MIB
    assert not cycles.look()
    memory.held = 228 * MIB
    assert cycles.look()


def test_the_process_tells_what_it_holds_in_bytes() -> None:
    before = read_resident_bytes()
    ballast = bytearray(b"x" * 64 * MIB)

    assert read_resident_bytes() - before > 32 * MIB
    assert len(ballast) == 64 * MIB
