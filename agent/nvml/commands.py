"""An operator's commands to the GPU collector: release the GPUs, and resume reading them.

An open handle blocks the reset of a GPU and a change of its MIG mode.
"""

from collections.abc import Mapping
from typing import Any, Final

from agent.control_socket import Command
from agent.nvml.monitor import GpuMonitor
from rankmend.errors import SourceError

RELEASE_S_MAX: Final = 86_400.0  # a forgotten release ends by itself


def gpu_commands(monitor: GpuMonitor) -> dict[str, Command]:
    """Return the commands by name."""

    def release(request: Mapping[str, Any]) -> str:
        for_s = request.get("for_s")
        if (
            not isinstance(for_s, int | float)
            or isinstance(for_s, bool)
            or not 0 < for_s <= RELEASE_S_MAX
        ):
            raise SourceError(
                f"for_s is not a number of seconds up to {RELEASE_S_MAX:g}: {for_s!r}"
            )
        return monitor.release(float(for_s))

    def resume(_request: Mapping[str, Any]) -> str:
        return monitor.resume()

    return {"release": release, "resume": resume}
