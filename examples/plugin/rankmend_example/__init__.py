"""An example of a plugin for rankmend's node agent. docs/plugins.md explains it."""
