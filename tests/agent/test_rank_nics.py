"""Which rank stands on which NIC: the join of what the GPUs and the topology say."""

import pytest

from agent.assembly.families import FAMILIES
from agent.collectors.rank_nics import RankNicsCollector, join_ranks
from agent.metrics import Metric
from rankmend.errors import NoSourceError
from tests.support.agent import values_of
from tests.support.collectors import info, plane, view_of

GPU_0, GPU_1 = "0000:1b:00.0", "0000:5d:00.0"


def rank_on(gpu: str, rank: str, pid: str = "300") -> Metric:
    return info("rank_gpu_info", "job", rank, "0", f"GPU-{gpu}", gpu, pid)


def affinity(gpu: str, device: str, closeness: str) -> Metric:
    return info("topology_affinity_info", gpu, device, closeness)


NODE = [
    affinity(GPU_0, "mlx5_0", "PIX"),
    affinity(GPU_0, "mlx5_1", "SYS"),
    affinity(GPU_0, "mlx5_2", "PIX"),
    affinity(GPU_1, "mlx5_0", "SYS"),
    affinity(GPU_1, "mlx5_1", "PXB"),
    affinity(GPU_1, "mlx5_2", "SYS"),
    plane("mlx5_0", rail="0"),
    plane("mlx5_1", rail="1"),
    plane("mlx5_2", "storage", rail=""),
]


def test_rank_stands_on_the_compute_port_nearest_to_its_gpu() -> None:
    found = values_of(list(join_ranks([rank_on(GPU_0, "4"), rank_on(GPU_1, "5"), *NODE])))

    assert found == {
        f"rank_nic_info{{job,4,0,{GPU_0},mlx5_0,1,0,PIX}}": 1,
        f"rank_nic_info{{job,5,0,{GPU_1},mlx5_1,1,1,PXB}}": 1,
    }


def test_two_equally_near_ports_are_both_named() -> None:
    node = [*NODE[:3], plane("mlx5_0"), plane("mlx5_0", port="2"), plane("mlx5_2", rail="1")]

    found = values_of(list(join_ranks([rank_on(GPU_0, "4"), *node])))

    assert set(found) == {
        f"rank_nic_info{{job,4,0,{GPU_0},mlx5_0,1,0,PIX}}",
        f"rank_nic_info{{job,4,0,{GPU_0},mlx5_0,2,0,PIX}}",
        f"rank_nic_info{{job,4,0,{GPU_0},mlx5_2,1,1,PIX}}",
    }


def test_where_no_bridge_tells_near_from_far_no_port_is_named() -> None:
    node = [affinity(GPU_0, "mlx5_0", "SYS"), plane("mlx5_0")]

    assert list(join_ranks([rank_on(GPU_0, "4"), *node])) == []


def test_several_processes_of_a_rank_give_one_series() -> None:
    ranks = [rank_on(GPU_0, "4", pid="300"), rank_on(GPU_0, "4", pid="301")]

    assert len(list(join_ranks([*ranks, *NODE]))) == 1


def test_node_without_ranks_on_gpus_is_absent_and_not_empty() -> None:
    collector = RankNicsCollector()
    collector.watch(lambda: [view_of("gpu"), view_of("topology", *NODE)])

    with pytest.raises(NoSourceError, match="no rank"):
        list(collector.collect())


def test_answers_of_both_collectors_are_joined() -> None:
    collector = RankNicsCollector()
    views = [view_of("gpu", rank_on(GPU_0, "4")), view_of("topology", *NODE)]
    collector.watch(lambda: views)

    (found,) = collector.collect()

    family = FAMILIES["rankmend_rank_nic_info"]
    assert tuple(name for name, _value in found.labels) == family.labels
    assert dict(found.labels)["device"] == "mlx5_0"
