"""The network between nodes, from active tests: which part is slow, which flows collide, what a collective should cost."""
