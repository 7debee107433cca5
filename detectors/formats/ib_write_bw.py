"""Parses the report of `ib_write_bw` (perftest): the average bandwidth of an RDMA test.

Source: perftest, src/perftest_parameters.h: the header line "#bytes #iterations BW peak[UNIT] BW average[UNIT] MsgRate[Mpps]", UNIT being
MB/sec (2^20 bytes), MiB/sec in newer versions, or Gb/sec (10^9 bits) with --report_gbits; below it a line for each size.
"""

import re
from dataclasses import dataclass
from typing import Final

from rankmend.errors import SourceError

_HEADER: Final = re.compile(
    r"^\s*#bytes\s+#iterations\s+BW peak\[(?P<unit>[^\]]+)\]\s+BW average\[(?P=unit)\]"
)
_ROW: Final = re.compile(
    r"^\s*(?P<size>\d{1,12})\s+(?P<count>\d{1,12})\s+(?P<peak>-?\d+\.\d+)\s+(?P<average>\d+\.\d+)\s"
)
_UNITS: Final = {"MB/sec": float(1 << 20), "MiB/sec": float(1 << 20), "Gb/sec": 1e9 / 8}


@dataclass(frozen=True, slots=True)
class RdmaBandwidth:
    size_bytes: int
    iterations: int
    average_bytes_per_s: float


def parse_ib_write_bw(text: str) -> tuple[RdmaBandwidth, ...]:
    """Return a row for each message size. Raises SourceError where there is none, with the tool's last line."""
    unit_bytes: float | None = None
    rows = []
    for line in text.splitlines()[:10_000]:
        if header := _HEADER.match(line):
            if header["unit"] not in _UNITS:
                raise SourceError(f"ib_write_bw: unit {header['unit']!r:.40} is not known")
            unit_bytes = _UNITS[header["unit"]]
        elif unit_bytes is not None and (row := _ROW.match(line)):
            average = float(row["average"]) * unit_bytes
            rows.append(RdmaBandwidth(int(row["size"]), int(row["count"]), average))
    if not rows:
        last = next(
            (line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing"
        )
        raise SourceError(f"ib_write_bw reported no bandwidth; it said last: {last[:200]}")
    return tuple(rows)
