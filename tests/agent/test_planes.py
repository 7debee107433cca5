"""Each network of a node as a whole: what of it is there, how loaded it is, and for which job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.families import FAMILIES
from agent.collectors.planes import PlanesCollector, PortHealth, available_ratio
from agent.metrics import Metric
from rankmend.errors import NoSourceError
from tests.support.agent import FakeClock, values_of
from tests.support.collectors import plane, view_of

RATE = 50e9


def port_metrics(
    device: str, state: int = 4, rate: float = RATE, moved: float = 1e9
) -> list[Metric]:
    labels = (("device", device), ("port", "1"))
    values = {
        "port_state_id": state, "receive_packets_total": 9, "rate_bytes_per_second": rate,
        "rate_max_bytes_per_second": RATE, "receive_bytes_total": moved, "transmit_bytes_total": 0,
    }  # fmt: skip
    return [Metric(f"rankmend_nic_{name}", value, labels) for name, value in values.items()]


def ethernet_metrics(device: str, carrier: int) -> list[Metric]:
    labels = (("device", device),)
    found = [
        Metric("rankmend_ethernet_carrier", carrier, labels),
        Metric("rankmend_network_receive_bytes_total", 5, labels),
    ]
    speed = Metric("rankmend_ethernet_speed_bytes_per_second", 1e9, labels)
    return [*found, speed] if carrier else found


def rank_of(job_id: str) -> Metric:
    return Metric("rankmend_rank_info", 1, (("job_id", job_id), ("rank", "0")))


class Bed:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.collector = PlanesCollector(self.clock)

    def look(self, *metrics: Metric) -> dict[str, float]:
        sources = ("topology", "nic", "ethernet", "network", "ranks")
        views = [view_of(name, *(metrics if name == "nic" else ())) for name in sources]
        self.collector.watch(lambda: views)
        return values_of(list(self.collector.collect()))


PLANES = [
    plane("mlx5_0"), plane("mlx5_1"), plane("mlx5_8", "storage"), plane("mlx5_9", "storage"),
    plane("eth0", "management", port=""), plane("mlx5_7", "uplink"),
]  # fmt: skip


def test_a_storage_network_with_one_of_two_ports_has_half_of_its_rate_for_each_job() -> None:
    found = Bed().look(
        *PLANES, *port_metrics("mlx5_0"), *port_metrics("mlx5_1"), *port_metrics("mlx5_7"),
        *port_metrics("mlx5_8"), *port_metrics("mlx5_9", state=1), *ethernet_metrics("eth0", 1),
        rank_of("j1"), rank_of("j2"),
    )  # fmt: skip

    assert found["plane_ports{storage}"] == 2
    assert found["plane_ports_up{storage}"] == 1
    assert found["plane_available_ratio{storage}"] == 0.5
    assert found["plane_available_ratio{compute}"] == 1
    assert found["plane_available_ratio{management}"] == 1
    assert found["plane_job_available_ratio{storage,j1}"] == 0.5
    assert found["plane_job_available_ratio{storage,j2}"] == 0.5
    assert not [name for name in found if "uplink" in name]


def test_a_port_that_runs_slower_than_it_ought_to_counts_in_part() -> None:
    slow = port_metrics("mlx5_8", rate=RATE / 4)

    found = Bed().look(*PLANES, *slow, *port_metrics("mlx5_9"))

    assert found["plane_available_ratio{storage}"] == 0.625


def test_a_port_that_never_carried_traffic_is_no_loss_and_a_node_without_any_has_no_planes() -> (
    None
):
    unused = [
        metric
        for metric in port_metrics("mlx5_9", state=1)
        if metric.name != "rankmend_nic_receive_packets_total"
    ]

    found = Bed().look(*PLANES, *port_metrics("mlx5_8"), *unused)

    assert found["plane_available_ratio{storage}"] == 1
    with pytest.raises(NoSourceError):
        Bed().look(*PLANES, *unused)


def test_a_cable_out_of_the_management_port_is_seen_by_its_carrier() -> None:
    found = Bed().look(*PLANES, *ethernet_metrics("eth0", 0))

    assert (found["plane_ports_up{management}"], found["plane_available_ratio{management}"]) == (
        0,
        0,
    )


def test_load_is_what_moved_since_the_run_before_and_a_counter_that_began_anew_is_none() -> None:
    bed = Bed()

    first = bed.look(*PLANES, *port_metrics("mlx5_8", moved=1e9))
    bed.clock.time_s += 10
    second = bed.look(*PLANES, *port_metrics("mlx5_8", moved=1e9 + RATE * 10 * 0.5))
    bed.clock.time_s += 10
    third = bed.look(*PLANES, *port_metrics("mlx5_8", moved=5.0))

    assert "plane_load_ratio{storage,receive}" not in first
    assert second["plane_load_ratio{storage,receive}"] == pytest.approx(0.5)
    assert second["plane_load_ratio{storage,transmit}"] == 0
    assert third["plane_load_ratio{storage,receive}"] == 0


@given(st.lists(st.tuples(st.booleans(), st.none() | st.floats(0, 1e11), st.none() | st.floats(1e9, 1e11)), min_size=1, max_size=9))  # fmt: skip
def test_what_is_there_is_a_share_whatever_the_ports_tell(
    ports: list[tuple[bool, float | None, float | None]],
) -> None:
    ratio = available_ratio([PortHealth("p", *one, (None, None)) for one in ports])

    assert 0 <= ratio <= 1
    if not any(is_up for is_up, _rate, _most in ports):
        assert ratio == 0


def test_all_families_are_declared() -> None:
    assert {name for name in FAMILIES if name.startswith("rankmend_plane_")} == {
        f"rankmend_plane_{end}"
        for end in ("ports", "ports_up", "available_ratio", "load_ratio", "job_available_ratio")
    }
