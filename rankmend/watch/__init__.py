"""Watching jobs of other launchers: the folder for their PYTHONPATH, and the lines that switch it on."""
