"""What rankmend would have done and did not: in observe mode, dry runs, pauses, and plans that nobody approved."""
