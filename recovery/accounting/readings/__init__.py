"""What the agent of a blamed node answered when an incident opened, and when it was over."""
