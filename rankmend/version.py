"""The version of rankmend; pyproject.toml reads it from here.

Asking the installed package's metadata for it takes 20 ms of every start.
"""

from typing import Final

RANKMEND_VERSION: Final = "0.1.0"
