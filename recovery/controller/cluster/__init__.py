"""State shared by the jobs of one controller: held nodes, pauses, budgets, alerts."""
