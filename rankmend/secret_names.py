"""What tells of a secret: names of variables, options and fields, and logins within URLs."""

import re
from typing import Final

# Bounded and only from a name's beginning: an unbounded one takes a minute over 200 kB of "x".
# As a part of a name: HF_TOKEN, wandb.api_key, "clientSecret", --password.
TELLING_NAME: Final = (
    r"(?<![A-Za-z0-9_.\-])-{0,2}[A-Za-z0-9_.\-]{0,64}?(?:token|secret|passw(?:or)?d|passphrase|pwd|api[_-]?key|apikey|access[_-]?key"
    r"|private[_-]?key|signing[_-]?key|storage[_-]?key|account[_-]?key|shared[_-]?key|license[_-]?key|credential|cookie|bearer|webhook|authorization"
    r"|_auth\b|auth[_-]key|dsn\b|connection[_-]?string)[A-Za-z0-9_.\-]{0,64}"
)
SECRET_NAME: Final = re.compile(TELLING_NAME, re.IGNORECASE)
# scheme://user:password@host; the group is the scheme
URL_LOGIN: Final = re.compile(r"\b([A-Za-z][A-Za-z0-9+.\-]{1,20}://)[^\s/@\"']{1,512}@")
