"""`python -m rankmend`: the `rankmend` command of this interpreter, also where no script of it is on the PATH."""

from rankmend.cli import main

main()
