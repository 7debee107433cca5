"""What the jobs of one controller share: nodes that are held back, pauses, budgets, alerts."""
