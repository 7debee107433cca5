"""What to run, by the command line; the same for every attempt."""

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError
from rankmend.hook.layout import DATA_TYPES, DEVICE_NAME_BYTES_MAX
from rankmend.printable import is_printable
from recovery.launcher.ranks.command import RankCommand
from recovery.messages.exchange import RankWork

_AMOUNTS: Final = ("flops", "tokens", "samples")
_WORDS: Final = ("dtype", "device")
_FORM: Final = "flops=1.2e18,tokens=4194304,samples=1024,dtype=bf16,device=NVIDIA H200"
_DATA_TYPE: Final = "bf16"

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # torchrun's


@dataclass(frozen=True, slots=True)
class StatedWork:
    """The work of all ranks together in one step, as stated once on the command line (`--step-work`)."""

    flops: float = 0.0
    tokens: float = 0.0
    samples: float = 0.0
    data_type: str = ""  # of the FLOPs; empty: none are stated
    device: str = ""

    def of_rank(self, steps: int, world_size: int) -> RankWork:
        """Return a rank's share of so many steps."""
        share = steps / max(1, world_size)
        return RankWork(
            self.flops * share,
            self.tokens * share,
            self.samples * share,
            self.data_type,
            self.device,
        )


def parse_step_work(text: str) -> StatedWork:
    """Return the work that an option states; raises ConfigError where it states none."""
    reported: dict[str, str] = {}
    for part in text.split(","):
        name, separator, value = part.partition("=")
        name = name.strip()
        if not separator or name not in (*_AMOUNTS, *_WORDS) or name in reported:
            raise ConfigError(
                f"--step-work {text!r:.200}: write it as {_FORM}, with the parts that apply"
            )
        reported[name] = value.strip()
    amounts = {name: _amount(name, reported[name]) for name in _AMOUNTS if name in reported}
    if not any(amounts.values()):
        raise ConfigError(f"--step-work {text!r:.200} states no flops, tokens or samples above 0")
    data_type = reported.get("dtype", _DATA_TYPE)
    if data_type not in DATA_TYPES[1:]:
        known = ", ".join(DATA_TYPES[1:])
        raise ConfigError(f"--step-work: dtype={data_type!r:.80} is not one of {known}")
    device = reported.get("device", "")
    if len(device.encode()) > DEVICE_NAME_BYTES_MAX or not is_printable(device):
        raise ConfigError(f"--step-work: device={device!r:.80} is not the name of an accelerator")
    return StatedWork(**amounts, data_type=data_type if amounts.get("flops") else "", device=device)


def _amount(name: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise ConfigError(f"--step-work: {name}={text!r:.80} is not a number of 0 or more")
    return amount


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    job_id: str
    job_name: str
    node: str
    boot_id: str
    command: RankCommand
    environment: Mapping[str, str]
    folder: Path  # working directory of the ranks
    run_id: str
    role: str
    fence_file: Path | None
    is_auto: bool
    time_limit_s: float | None
    mark_node: str | None = None  # this node's name, if the machine may run other nodes of the job
    is_old_torch: bool = False  # the flight recorder of this PyTorch is off by default
    grace_s: float = 30.0  # for a planned stop without a controller
    stop_signals: tuple[signal.Signals, ...] = STOP_SIGNALS  # each asks for a planned stop
    is_virtual_local_rank: bool = False  # each rank sees one GPU
    cpus: tuple[tuple[int, ...], ...] = ()  # by local rank; empty: not bound
    stdin: int | None = None  # the ranks' standard input; None: /dev/null
    keeps_snapshots: bool = True  # of the ranks' state, in memory
    step_work: StatedWork | None = None  # where the script reports none itself
    allows_drills: bool = False  # `rankmend inject` may break its ranks
