"""The board of orders between the deciding thread and the polls: who waits for whom."""

import asyncio
import threading

import pytest

from recovery.messages.exchange import Order, Stop
from recovery.service.jobs.newest_orders import MANY, NewestOrders

pytestmark = pytest.mark.process

JOB = "0c1d6a52-0000-4000-8000-000000000003"


def order_for(node: str) -> Order:
    return Order(1, JOB, 1, 1, (), 1, 0, 1, Stop.KILL, 0.0, None, 0, 0, node=node, epoch=1)


async def poll(board: NewestOrders, node: str, answered: list[str]) -> None:
    assert await board.changed(JOB, node, 60.0)
    answered.append(node)


def flush_beside(count: int) -> tuple[int, bool]:
    """Order ``count`` nodes that poll; return how many had their answer when the flush was over, and whether polls are settled."""

    async def run() -> tuple[int, bool]:
        board, answered, seen = NewestOrders(60.0), list[str](), list[int]()
        board.attach(asyncio.get_running_loop())
        polls = [asyncio.create_task(poll(board, f"n{n}", answered)) for n in range(count)]
        while board.waiting < count:
            await asyncio.sleep(0)
        for n in range(count):
            board.put(order_for(f"n{n}"))

        def decide() -> None:
            board.flush()
            seen.append(len(answered))

        thread = threading.Thread(target=decide)
        thread.start()
        await asyncio.gather(*polls)
        await asyncio.to_thread(thread.join)
        return seen[0], board.is_settled()

    return asyncio.run(run())


def test_the_deciding_thread_lets_the_answers_to_many_polls_go_out_first() -> None:
    assert flush_beside(MANY) == (MANY, False)


def test_orders_to_a_few_leave_the_polls_of_all_others_as_spread_as_they_are() -> None:
    assert flush_beside(3)[1] is True


def test_a_loop_that_answers_nobody_does_not_hold_the_deciding_thread() -> None:
    """One that is closed, or stuck, which the watchdog sees."""

    async def attach(board: NewestOrders) -> None:
        board.attach(asyncio.get_running_loop())

    board = NewestOrders()
    asyncio.run(attach(board))
    for n in range(MANY):
        board.put(order_for(f"n{n}"))
    board.flush()  # returns
    assert board.pending == MANY
