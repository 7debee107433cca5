"""An example of a plugin for rankmend's node agent. docs/reference/plugins.md explains it."""
