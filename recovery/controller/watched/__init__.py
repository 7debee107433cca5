"""Jobs of other launchers, as nodes' agents report them: what is wrong with one, and what may be done about it."""
