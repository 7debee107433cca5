"""Gives the built metadata the project's addresses, which are a setting of the build: the repository knows none.

RANKMEND_PROJECT_URL, in the environment of the build: the address of a repository or site that the project owns. Without it the
metadata has no address, since whoever registered a name that we print would speak for the project.
"""

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ProjectUrls(MetadataHookInterface):
    def update(self, metadata: "dict[str, Any]") -> None:
        if url := os.environ.get("RANKMEND_PROJECT_URL", "").rstrip("/"):
            metadata["urls"] = {"Homepage": url}
