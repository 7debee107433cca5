"""Model weights in a folder: one file, or shards with their index."""

import re
from typing import Final

from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.names import shown

_INDEX: Final = re.compile(r".+\.(?:safetensors|bin)\.index(?:\.[\w-]+)?\.json")
_SHARD: Final = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.(?:safetensors|bin)")
_SINGLE: Final = re.compile(
    r"(?:model|pytorch_model|adapter_model|diffusion_pytorch_model)(?:_[0-9]+)?\.(?:safetensors|bin)"
)


def check_weights(tree: Tree) -> str | None:
    """Return what the weights consist of, None where there are none; raise for a missing shard."""
    shards = tree.matching(_SHARD)
    proof = None
    for index in tree.matching(_INDEX):  # PaddleNLP has one of the optimizer, too
        weights = tree.json(index[0]).get("weight_map")
        if not isinstance(weights, dict) or not weights:
            raise DefectError(f"{shown(index[0])}: it has no weight_map")
        named = sorted({name for name in weights.values() if isinstance(name, str)})
        for name in named:
            if name not in tree.files:
                raise DefectError(f"{index[0]}: shard {shown(name)}, which it names, is missing")
        proof = proof or f"{len(named)} shards of {index[0]}"
    if proof is not None:
        return proof
    if shards:
        start, _number, count = shards[0].groups()
        for number in range(1, int(count) + 1):
            name = f"{start}-{number:05}-of-{count}"
            if not any(shard[0].startswith(name) for shard in shards):
                raise DefectError(f"shard {shown(name)} is missing")
        if int(count) > 1:
            raise DefectError("the index of its shards (*.index.json) is missing")
        return "1 shard"
    single = tree.matching(_SINGLE)
    return single[0][0] if single else None
