"""Takes secrets out of text that is to leave the site. Pure: text in, text out.

What is removed is replaced by a word in brackets, so that a reader sees that something was there.
Three ways, since each misses something: the values of variables whose names tell of a secret,
wherever they stand; what follows such a name; the published shapes of tokens. What matches none
of them stays: a person looks through a bundle before it is sent (docs/operate/incidents.md).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from rankmend.secret_names import SECRET_NAME, TELLING_NAME, URL_LOGIN

LITERAL_CHARS_MIN: Final = 6  # shorter values ("1", "true", "root") stand everywhere
LITERALS_MAX: Final = 256

_REMOVED: Final = "[removed]"
_RULES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        "[removed private key]",
    ),
    (URL_LOGIN, rf"\1{_REMOVED}@"),
    (
        re.compile(r"\b(Bearer|Basic|Token)\s+[A-Za-z0-9._~+/=\-]{6,}", re.IGNORECASE),
        rf"\1 {_REMOVED}",
    ),
    # name=value, name: value, "name": "value", --name value; quotes also behind a backslash
    (
        re.compile(
            rf"({TELLING_NAME}[\"']?\s*[=:]\s*([\"']))(?:(?!\2)[^\\]|\\.){{1,65536}}",
            re.IGNORECASE | re.DOTALL,
        ),
        rf"\1{_REMOVED}",
    ),
    (
        re.compile(rf"({TELLING_NAME}\\[\"']\s*[=:]\s*\\[\"'])[^\"'\\]{{1,65536}}", re.IGNORECASE),
        rf"\1{_REMOVED}",
    ),
    (
        re.compile(
            rf"({TELLING_NAME}\\?[\"']?\s*[=:]\s*)(?![\"'\\\[{{]|(?:null|None|true|false)\b)[^\s,;&\"'\]}})]+",
            re.IGNORECASE,
        ),
        rf"\1{_REMOVED}",
    ),
    (
        re.compile(rf"((?=--){TELLING_NAME}\s+)(?!-)[^\s\"']{{1,65536}}", re.IGNORECASE),
        rf"\1{_REMOVED}",
    ),
    # "wandb login KEY": 40 hexadecimal digits alone are as likely a commit
    (re.compile(r"\b(login\s+)[A-Za-z0-9_\-]{20,512}\b", re.IGNORECASE), rf"\1{_REMOVED}"),
    # AWS; GitHub; GitLab; Hugging Face; OpenAI and others; Slack; Google; JSON web token
    # rankmend's own: rm_ID_SECRET, also one that was cut
    (re.compile(r"\brm_[0-9a-fA-F]{8}_[A-Za-z0-9_\-]{8,}"), _REMOVED),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), _REMOVED),
    (
        re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abeprs]-)[A-Za-z0-9_\-]{10,}"),
        _REMOVED,
    ),
    (re.compile(r"\bAIza[A-Za-z0-9_\-]{35}\b"), _REMOVED),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"), _REMOVED),
    (re.compile(r"(/home/|/Users/)[^/\s\"':,;)\]]+"), r"\1[user]"),
)

# Variables whose values say how a job communicates and where it runs, and are no secrets.
_SHOWN: Final = re.compile(
    r"(NCCL|TORCH|TORCHELASTIC|RCCL|GLOO|FI|UCX|OMP|MKL|CUDA|HIP|ROCR|PYTORCH|MASTER|OMPI|PMIX)_[A-Z0-9_]+"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|PATH|LD_LIBRARY_PATH|LANG|PWD"
    r"|SLURM_(JOB_ID|JOB_NAME|NNODES|NODELIST|JOB_NODELIST|NTASKS|PROCID|NODEID|JOB_PARTITION|CPUS_ON_NODE|GPUS_ON_NODE)"
    r"|RANKMEND_[A-Z_]+"
)


class Scrubber:
    """Takes out what `_RULES` describe, the literal secrets of these environments, and those it is told."""

    def __init__(
        self,
        environments: tuple[Mapping[str, str], ...],
        home: str = "",
        known: Iterable[str] = (),
    ) -> None:
        """``known``: secrets by their value, wherever they stand."""
        own = {item for item in known if len(item) >= LITERAL_CHARS_MIN}
        secrets = own | {
            value
            for environment in environments
            for name, value in environment.items()
            if SECRET_NAME.fullmatch(name) and len(value) >= LITERAL_CHARS_MIN
        }
        # The longest first: one may be the beginning of another.
        self._literals = sorted(secrets, key=len, reverse=True)[: LITERALS_MAX + len(own)]
        self._home = home.rstrip("/")

    def scrub(self, text: str) -> str:
        """Return the text without secrets and without the names of home folders."""
        for literal in self._literals:
            text = text.replace(literal, _REMOVED)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        if self._home:
            text = re.sub(rf"{re.escape(self._home)}(?=[/\s\"':,;)\]]|$)", "~", text)
        return text

    def scrub_value(self, value: object) -> object:
        """Return a value of JSON with every text in it scrubbed; names of secrets lose theirs."""
        if isinstance(value, str):
            return self.scrub(value)
        if isinstance(value, Mapping):
            return {
                self.scrub(str(name)): _REMOVED
                if isinstance(item, str) and item and SECRET_NAME.fullmatch(str(name))
                else self.scrub_value(item)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.scrub_value(item) for item in value]
        return value


def shown_environment(environment: Mapping[str, str], scrubber: Scrubber) -> dict[str, str]:
    """Return the variables of an allow list with their values, and of all others the names only."""
    return {
        name: scrubber.scrub(value)
        if _SHOWN.fullmatch(name) and not SECRET_NAME.fullmatch(name)
        else "[set]"
        for name, value in sorted(environment.items())
    }
