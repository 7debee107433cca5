"""All folder formats, in the order in which they are asked: the more specific one first."""

from typing import Final

from recovery.checkpoints.formats.accelerate import AccelerateFormat
from recovery.checkpoints.formats.dcp import DcpFormat
from recovery.checkpoints.formats.deepspeed import DeepSpeedFormat
from recovery.checkpoints.formats.format import FolderFormat
from recovery.checkpoints.formats.lightning import LightningFormat, NemoFormat
from recovery.checkpoints.formats.megatron import MegatronDistFormat, MegatronFormat
from recovery.checkpoints.formats.nvrx_local import NvrxLocalFormat
from recovery.checkpoints.formats.orbax import OrbaxFormat
from recovery.checkpoints.formats.plain import DlroverFormat, SafetensorsFormat, TorchFolderFormat
from recovery.checkpoints.formats.trainer import TrainerFormat
from recovery.checkpoints.formats.tree import Tree
from recovery.messages.candidates import CheckpointFormat

FORMATS: Final[tuple[FolderFormat, ...]] = (
    NemoFormat(),
    NvrxLocalFormat(),
    AccelerateFormat(),
    TrainerFormat(),
    MegatronFormat(),
    DeepSpeedFormat(),
    LightningFormat(),
    MegatronDistFormat(),
    DcpFormat(),
    OrbaxFormat(),
    DlroverFormat(),
    SafetensorsFormat(),
    TorchFolderFormat(),
)
_BY_FORMAT: Final = {item.format: item for item in FORMATS}


def recognise(tree: Tree) -> FolderFormat | None:
    """Return the format that wrote this folder, or None when no known one did."""
    return next((item for item in FORMATS if item.recognises(tree)), None)


def format_of(kind: CheckpointFormat) -> FolderFormat | None:
    """Return the folder format of a candidate, or None where it is a file or has a marker alone."""
    return _BY_FORMAT.get(kind)
