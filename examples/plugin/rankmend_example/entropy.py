"""How much randomness the kernel has gathered.

Source: <procfs>/sys/kernel/random/{entropy_avail,poolsize}, random(4).
Cost:   two small reads.
"""

from collections.abc import Iterator

from agent.metrics import Family, Metric, MetricType
from agent.plugins import PluginContext
from rankmend.errors import ConfigError, NoSourceError, SourceError


class EntropyCollector:
    name = "entropy"
    interval_s = 10.0
    is_proved_on_hardware = True
    families = (
        Family(
            "rankmend_entropy_available_ratio",
            MetricType.GAUGE,
            "ratio",
            ("pool",),
            "Randomness that the kernel has, as a share of what its pool holds.",
        ),
    )

    def __init__(self, context: PluginContext) -> None:
        settings = dict(context.settings)
        self._pool = str(settings.pop("pool", "kernel"))
        if settings:  # nobody else checks a plugin's own table
            raise ConfigError(f"[plugins.entropy] has no {', '.join(settings)}")
        self._folder = context.procfs_root / "sys" / "kernel" / "random"

    def collect(self) -> Iterator[Metric]:
        if not self._folder.is_dir():  # absent: never zero, never healthy
            raise NoSourceError(f"no {self._folder}")
        available, size = self._read("entropy_avail"), self._read("poolsize")
        if size == 0:
            raise SourceError(f"{self._folder}/poolsize is 0")
        labels = (("pool", self._pool),)
        yield Metric("rankmend_entropy_available_ratio", available / size, labels)

    def _read(self, name: str) -> int:
        try:
            return int((self._folder / name).read_text(encoding="ascii"))
        except (OSError, ValueError) as error:  # broken: there, and not to be read
            raise SourceError(f"cannot read {self._folder / name}: {error}") from error
