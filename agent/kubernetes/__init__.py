"""The node's findings in Kubernetes: a process beside the agent, with a memory budget of its own."""
