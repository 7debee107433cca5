"""Cards are their UUIDs: whatever indexes the driver gives them, each is there once, with its own counts."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nvml.known_gpus import EventMessage, GpuMessage, KnownGpus
from detectors.node.inventory import (
    Device,
    DeviceKind,
    DeviceMemory,
    DeviceStanding,
    InventoryLook,
    KnownDevice,
    update,
)

UUIDS = tuple(f"GPU-0000000{number}" for number in range(4))
ORDERS = {
    "one is lost and those behind it move up": UUIDS[:1] + UUIDS[2:],
    "the last one is lost": UUIDS[:3],
    "the first one is lost": UUIDS[1:],
    "two are handed to a virtual machine": UUIDS[2:],
    "the driver counts from the other end": UUIDS[::-1],
    "two have changed places": (UUIDS[1], UUIDS[0], *UUIDS[2:]),
    "one was replaced": (*UUIDS[:2], "GPU-new", UUIDS[3]),
    "one was replaced and stands first": ("GPU-new", *UUIDS[:2], UUIDS[3]),
    "all are gone": (),
}


def see(gpus: KnownGpus, uuids: Sequence[str], at_s: float = 1.0) -> None:
    """Have the driver opened anew: it lists these cards, in this order."""
    gpus.open(len(uuids))
    for index, uuid in enumerate(uuids):
        values = (("utilization_ratio", (), 0.5),)
        gpus.add_values(
            GpuMessage(
                index, uuid, f"0000:{index:02x}:00.0", "fast", values, {}, 0, "", False, False
            ),
            at_s,
        )


def xids_by_uuid(gpus: KnownGpus) -> dict[str, dict[int, int]]:
    return {one.uuid: one.xids for one in gpus.views(2.0, ())}


def started() -> KnownGpus:
    gpus = KnownGpus()
    see(gpus, UUIDS)
    for index in range(4):
        for _time in range(index + 1):
            gpus.add_event(EventMessage(index, "xid", 63), 1.0)
    return gpus


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_each_card_is_there_once_under_its_present_index_with_its_own_counts(
    order: Sequence[str],
) -> None:
    gpus = started()

    see(gpus, order)

    assert [(one.index, one.uuid) for one in gpus.views(2.0, ())] == list(enumerate(order))
    counts = {uuid: {63: number + 1} for number, uuid in enumerate(UUIDS)}
    assert xids_by_uuid(gpus) == {uuid: counts.get(uuid, {}) for uuid in order}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_cards_that_are_back_go_on_with_their_counts(order: Sequence[str]) -> None:
    gpus = started()

    see(gpus, order)
    see(gpus, UUIDS)

    assert xids_by_uuid(gpus) == {uuid: {63: number + 1} for number, uuid in enumerate(UUIDS)}


@given(st.lists(st.permutations([*UUIDS, "GPU-a", "GPU-b"]).flatmap(
    lambda order: st.integers(0, 6).map(lambda count: order[:count])), max_size=6))  # fmt: skip
def test_after_any_sequence_of_renumberings_every_listed_card_is_there_once(
    orders: list[list[str]],
) -> None:
    gpus = started()
    for order in orders:
        see(gpus, order)
        assert [one.uuid for one in gpus.views(2.0, ())] == order


def test_a_lost_card_that_can_not_say_its_uuid_keeps_the_name_of_its_place() -> None:
    gpus = started()

    gpus.add_values(GpuMessage(1, "", "", "fast", (), {}, 1, "GPU is lost", True, False), 2.0)

    assert [(one.uuid, one.is_lost) for one in gpus.views(2.0, ())][1] == (UUIDS[1], True)


def test_a_memory_that_holds_a_card_twice_heals_by_itself() -> None:
    """What an agent of before had written after GPUs were renumbered."""
    twice = [
        KnownDevice(Device(DeviceKind.GPU, UUIDS[number], f"gpu{index}", "0000:1e:00.0"), "boot-1")
        for index, number in enumerate((0, 1, 2, 3, 3, 2))
    ]
    now = [Device(DeviceKind.GPU, uuid, f"gpu{index}") for index, uuid in enumerate(UUIDS)]
    look = InventoryLook({DeviceKind.GPU: now}, "boot-1", 1000.0)

    healed = update(DeviceMemory(tuple(twice)), look)

    assert [one.device.identity for one in healed.known] == list(UUIDS)
    assert set(healed.standings.values()) == {DeviceStanding.PRESENT}
    assert healed.missing() == []


def test_a_card_that_is_listed_twice_is_one_card() -> None:
    card = Device(DeviceKind.GPU, UUIDS[0], "gpu0")
    look = InventoryLook(
        {DeviceKind.GPU: [card, Device(DeviceKind.GPU, UUIDS[0], "gpu2")]}, "b", 1.0
    )

    memory = update(update(DeviceMemory(), look), look)

    assert len(memory.known) == len(memory.standings) == 1


def fast(values: tuple[tuple[str, tuple[str, ...], float], ...] | None) -> GpuMessage:
    return GpuMessage(0, UUIDS[0], "0000:00:00.0", "fast", values, {}, 0, "", False, False)


def test_message_without_values_says_that_they_are_as_before() -> None:
    gpus = KnownGpus()
    gpus.add_values(fast((("temperature_celsius", (), 45.0),)), 1.0)
    (before,) = gpus.views(1.0, ())

    gpus.add_values(fast(None), 5.0)
    (after,) = gpus.views(5.5, ())

    assert after.groups["fast"].values == (("temperature_celsius", (), 45.0),)
    assert after.groups["fast"].revision == before.groups["fast"].revision
    assert (after.groups["fast"].age_s, after.age_s) == (0.5, 0.5)


def test_values_that_were_forgotten_are_not_there_until_they_are_sent_again() -> None:
    gpus = KnownGpus()
    gpus.add_values(fast((("temperature_celsius", (), 45.0),)), 1.0)
    gpus.forget_values()

    gpus.add_values(fast(None), 2.0)
    (view,) = gpus.views(2.0, ())

    assert view.groups == {}


def test_gpu_that_a_sweep_names_has_answered_and_keeps_its_values() -> None:
    gpus = started()

    gpus.note_same({"fast": [1]}, 5.0)

    first, second, *_ = gpus.views(6.0, ())
    assert (first.age_s, second.age_s) == (5.0, 1.0)
    assert second.groups["fast"].age_s == 1.0
    assert second.groups["fast"].values == (("utilization_ratio", (), 0.5),)


def test_values_that_are_sent_anew_and_are_the_same_have_the_same_revision() -> None:
    gpus = started()
    before = gpus.views(2.0, ())[0].groups["fast"]

    see(gpus, UUIDS, 5.0)

    after = gpus.views(6.0, ())[0].groups["fast"]
    assert (after.revision, after.age_s) == (before.revision, 1.0)
