"""Fields of ``journalctl -o json``. Pure.

Source: systemd, JOURNAL_EXPORT_FORMATS (Journal JSON Format): a field with bytes that are not printable UTF-8, a colour for
instance, is an array of numbers; one that an entry has several times is an array of its values; one of more than 4,096 bytes is null
without ``--all``.
"""


def journal_text(value: object) -> str | None:
    """Return the text of a field, of several the first; None: it has none."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(byte, int) and 0 <= byte <= 255 for byte in value):
        return bytes(value).decode("utf-8", "replace")
    return journal_text(value[0]) if isinstance(value[0], (str, list)) else None
