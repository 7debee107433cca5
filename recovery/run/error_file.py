"""The file in which torchrun records why a job failed, for a scheduler or a launcher above it.

Format: torch/distributed/elastic/multiprocessing/errors/error_handler.py (2.13).
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rankmend.errors import StorageError
from rankmend.files import write_output
from recovery.journal.job_records import JobOutcome

log = logging.getLogger(__name__)

VARIABLE: Final = "TORCHELASTIC_ERROR_FILE"


def write_error_file(outcome: JobOutcome, environment: Mapping[str, str], unix_s: float) -> None:
    """Write the first rank's error, or why the job ended, to the file that the launcher's environment names."""
    path = environment.get(VARIABLE)
    if not path or outcome.exit_code == 0:
        return
    error = outcome.error
    message = outcome.reason if error is None else f"{error.type_name}: {error.message}"
    trace = "" if error is None else error.traceback
    told = {"py_callstack": trace, "timestamp": str(int(unix_s))}
    body = {
        "message": {"message": message, "errorCode": outcome.exit_code, "extraInfo": told},
    }
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_output(Path(path), json.dumps(body).encode(), StorageError)
    except (OSError, StorageError) as error_of_file:
        log.warning("%s can't be written", VARIABLE, extra={"error": str(error_of_file)})
