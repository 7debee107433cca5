"""Text from outside, made safe to print: the one place that decides what reaches a terminal or a log line.

Names, reasons, alert texts and a rank's last words come from other users and other hosts. Printed as they are, an escape
sequence could clear the screen or set its title, a newline could forge a line of ours, and U+202E could turn one
around. Each such character is replaced by one visible character, so that columns and styles stay where they
are. JSON needs none of this: its strings escape what matters.
Numbers, sizes and durations have their one form for people here, too.
"""

import math
from typing import Final

_STAND_IN: Final = "\N{REPLACEMENT CHARACTER}"
# Marks and overrides of direction, joiners, separators, annotation, and tags that no terminal shows. Unicode 15, categories
# Cf, Zl and Zp, except the soft hyphen and the joiners that emoji and Indic scripts need.
_UNSEEN: Final = (
    *range(0x2028, 0x202F),  # separators, embeddings and overrides of direction
    0x200B, 0x200E, 0x200F, 0x061C, 0x180E, 0x2060, 0xFEFF,
    *range(0x2061, 0x2070),  # isolates among them
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
)  # fmt: skip
_SURROGATES: Final = range(0xD800, 0xE000)  # no terminal's encoding holds them
_LINES: Final[dict[int, str]] = {
    **{code: chr(0x2400 + code) for code in range(0x20)},  # the control pictures: ␛, ␇
    **dict.fromkeys((*range(127, 160), *_UNSEEN, *_SURROGATES), _STAND_IN),
    0x7F: "\N{SYMBOL FOR DELETE}",
    ord("\t"): " ",
}
_UNITS: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_TEXT: Final = {code: stand_in for code, stand_in in _LINES.items() if code != ord("\n")}


def printable(text: str) -> str:
    """Return ``text`` as one line of the same length, without anything that a terminal would obey."""
    return text if text.isascii() and text.isprintable() else text.translate(_LINES)


def printable_lines(text: str) -> str:
    """Return the same for a text of ours with several lines: its newlines stay."""
    return text.translate(_TEXT)


def is_printable(text: str) -> bool:
    """Return whether ``text`` may be printed as it is."""
    return text.translate(_LINES) == text


def size_in_words(size_bytes: float) -> str:
    """Return a size for people: three significant figures."""
    for unit_bytes, unit in _UNITS:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def figure(value: float | None, digits: int = 3) -> str:
    """Return a number with so many significant digits and with thousands, never as 5e+05; a dash for None."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = min(12, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{round(value, decimals):,.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if decimals > 0 else text


def duration(seconds: float | None) -> str:
    """Return a duration for people, the same on all surfaces: three significant digits; a dash for None."""
    if seconds is None:
        return "-"
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{figure(seconds / unit_s)} {unit}"
    return f"{figure(seconds)} s"
