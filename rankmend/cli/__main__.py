"""`python -m rankmend.cli`: the same as the `rankmend` command."""

from rankmend.cli import main

main()
