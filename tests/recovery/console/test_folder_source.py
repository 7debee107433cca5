"""What the console of a state folder says of what is not there."""

import asyncio
from pathlib import Path

import pytest

from recovery.console.source import PageError, Viewer
from recovery.local_console.folder_source import FolderSource

pytestmark = pytest.mark.process

VIEWER = Viewer("ann", "127.0.0.1", ())


def test_an_incident_or_a_job_that_is_not_in_the_folder_is_not_found(tmp_path: Path) -> None:
    source = FolderSource(tmp_path)

    for ask in (source.records, source.job):
        with pytest.raises(PageError, match="none-1") as caught:
            asyncio.run(ask(VIEWER, "none-1"))
        assert caught.value.status == 404
