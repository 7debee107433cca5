"""A small process with root's rights that answers a fixed list of questions of the agent."""
