"""Names of variables, options and fields that tell of a secret."""

import re
from typing import Final

# Bounded and only from a name's beginning: an unbounded one takes a minute over 200 kB of "x".
# As a part of a name: HF_TOKEN, wandb.api_key, "clientSecret", --password.
TELLING_NAME: Final = (
    r"(?<![A-Za-z0-9_.\-])-{0,2}[A-Za-z0-9_.\-]{0,64}?(?:token|secret|passw(?:or)?d|passphrase|pwd|api[_-]?key|apikey|access[_-]?key"
    r"|private[_-]?key|signing[_-]?key|credential|cookie|bearer|webhook|authorization"
    r"|_auth\b|auth[_-]key|dsn\b|connection[_-]?string)[A-Za-z0-9_.\-]{0,64}"
)
SECRET_NAME: Final = re.compile(TELLING_NAME, re.IGNORECASE)
