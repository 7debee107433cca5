"""Finds a rank's place in the parallel layout of its model, by the descriptions of PyTorch's process groups.

Who splits a model also names the groups for it: DeviceMesh ("mesh_tp", by the names of its dimensions: FSDP2, torchtitan,
Accelerate, Lightning) and Megatron-LM ("TENSOR_MODEL_PARALLEL_GROUP"). Other names say nothing.
"""

import sys

from rankmend.hook import layout
from rankmend.hook.own_errors import OWN_ERRORS

_GROUPS_MAX = 4096
_NAMES = {
    "dp": ("mesh_dp", "mesh_dp_replicate", "mesh_data_parallel", "DATA_PARALLEL_GROUP"),
    "tp": ("mesh_tp", "mesh_tensor_parallel", "TENSOR_MODEL_PARALLEL_GROUP"),
    "pp": ("mesh_pp", "mesh_pipeline_parallel", "PIPELINE_MODEL_PARALLEL_GROUP"),
    "cp": ("mesh_cp", "mesh_context_parallel", "CONTEXT_PARALLEL_GROUP"),
    "ep": ("mesh_ep", "mesh_expert_parallel", "EXPERT_MODEL_PARALLEL_GROUP"),
}
_DIMENSIONS = {name: place for place, kind in enumerate(layout.DIMENSIONS) for name in _NAMES[kind]}


def find_place():
    """Return the index of this process along each of `layout.DIMENSIONS`, -1 where no group tells."""
    found = [-1] * len(layout.DIMENSIONS)
    try:
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        for group in list(world.pg_map)[:_GROUPS_MAX]:
            try:
                dimension = _DIMENSIONS.get(group.group_desc)
                if dimension is not None and group.size() > 1:
                    found[dimension] = group.rank()
            except OWN_ERRORS:  # a placeholder for a group without this rank
                pass
    except OWN_ERRORS:  # another version of PyTorch
        pass
    return tuple(found)
