"""Every fault that a test can make, one module for each thing that breaks.

A fault is undone when its block, its fleet or the interpreter ends. Tests import from the modules:

- `process`: kill, stop, freeze
- `storage`: a full disk, short writes; `hanging_disk`, `slow_disk`, `late_failing_disk` and `unreadable_files` serve a file system that hangs, that is slow or changes data, whose close() fails, or in which reading a file fails or hangs
- `processor`: a core that others take
- `network`: partitions and loss between test hosts; `slow_cable` is a program that delays frames
- `console`: a pipe that nobody reads, a terminal under Ctrl-S
- `clock`: a wall clock that jumps
"""
