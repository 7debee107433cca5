"""Asks a controller one question, and reads the configuration of one on this host.

What asks and what reads takes 0.4 s of a processor each to import: each is imported where there is somebody to ask, or a file.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from detectors.doctor.agent import ConfigState
from detectors.doctor.controller import ControllerAnswer, ControllerFacts
from rankmend.errors import ConfigError
from recovery.local.doctor.folders import look_at_state

if TYPE_CHECKING:
    from recovery.service.controller_config import Config

CONFIG: Final = "/etc/rankmend/controller/controller.toml"  # as in deploy/systemd
_UNAUTHORIZED: Final = 401


def load_config(path: Path) -> "tuple[Config | None, ConfigState, str]":
    """Return the configuration of a controller on this host, or why there is none."""
    try:
        if not path.exists():
            return None, ConfigState.ABSENT, ""
        if not os.access(path, os.R_OK):
            return None, ConfigState.HIDDEN, f"this user may not read {path}"
        from recovery.service import controller_config, template  # noqa: PLC0415 - see the top

        config = controller_config.load(path)
        if template.is_as_shipped(path.read_text("utf-8")):
            return None, ConfigState.ABSENT, ""  # the package's, on a host that runs no controller
        return config, ConfigState.GOOD, ""
    except PermissionError:
        return None, ConfigState.HIDDEN, f"this user may not look into {path.parent}"
    except ConfigError as error:
        return None, ConfigState.WRONG, str(error)


def read_controller(
    urls: Sequence[str],
    token_file: Path | None,
    ca_file: Path | None,
    config: Path,
    *,
    is_agents: bool = False,
) -> ControllerFacts:
    """``is_agents``: the URL is from the agent's configuration, and no person's token is meant for it."""
    answer, text = ControllerAnswer.NONE_NAMED, ""
    if urls:
        try:
            answer, text = _query(urls, token_file, ca_file)
        except ConfigError as error:
            answer, text = ControllerAnswer.NO_FILE, str(error)
    if answer is ControllerAnswer.BAD_TOKEN and token_file is None:
        answer = ControllerAnswer.NO_TOKEN
    found, state, error_text = load_config(config)
    return ControllerFacts(
        tuple(urls),
        answer,
        text,
        str(config),
        state,
        error_text,
        state=None if found is None else look_at_state(Path(found.state_dir), is_others=True),
        is_agents=is_agents,
    )


def _query(
    urls: Sequence[str], token_file: Path | None, ca_file: Path | None
) -> tuple[ControllerAnswer, str]:
    from recovery.api.controller_errors import (  # noqa: PLC0415 - see the top
        BusyError,
        ControllerError,
        RefusedError,
        TlsFault,
        UnreachableError,
    )
    from recovery.api.operator_client import OperatorClient  # noqa: PLC0415

    faults = {
        TlsFault.WRONG_NAME: ControllerAnswer.WRONG_NAME,
        TlsFault.WRONG_TIME: ControllerAnswer.WRONG_TIME,
        TlsFault.UNKNOWN_AUTHORITY: ControllerAnswer.UNKNOWN_AUTHORITY,
        TlsFault.NO_TLS: ControllerAnswer.NO_TLS,
        TlsFault.NO_CERTIFICATE: ControllerAnswer.NO_CERTIFICATE,
    }
    client = OperatorClient(urls, token_file=token_file, ca_file=ca_file)
    try:
        client.cluster()
        answer, text = ControllerAnswer.ANSWERS, ""
    except BusyError as error:
        answer, text = ControllerAnswer.BUSY, str(error)
    except UnreachableError as error:
        fault = None if error.tls_fault is None else faults[error.tls_fault]
        answer, text = fault or ControllerAnswer.UNREACHABLE, str(error)
    except RefusedError as error:
        is_unknown = error.status == _UNAUTHORIZED
        answer = ControllerAnswer.BAD_TOKEN if is_unknown else ControllerAnswer.REFUSED
        text = str(error)
    except ControllerError as error:
        answer, text = ControllerAnswer.UNREACHABLE, str(error)
    finally:
        client.close()
    return answer, text
