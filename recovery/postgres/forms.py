"""How a session of ours writes and reads text, bytes, times and numbers, whatever the role, the database or the server has set.

The driver escapes arrays of bytes by `standard_conforming_strings`: where it is off, checksums arrive as other bytes, and the check
of the table refuses every record. Read: what a role may set that changes the meaning of a literal or the form of a value
(PostgreSQL, 20.11.2 locale and formatting, 20.13 version and platform compatibility). The encoding is the connection's own parameter.
"""

from typing import Final

FORMS: Final = " ".join(
    f"-c {name}={value}"
    for name, value in {
        "standard_conforming_strings": "on",
        "backslash_quote": "safe_encoding",
        "escape_string_warning": "on",
        "transform_null_equals": "off",
        "array_nulls": "on",
        "quote_all_identifiers": "off",
        "bytea_output": "hex",
        "extra_float_digits": "1",
        "datestyle": "ISO",
        "intervalstyle": "postgres",
        "timezone": "UTC",
        "xmlbinary": "base64",
        "xmloption": "content",
    }.items()
)
