"""What a node asks of Slurm about itself: its state, its partitions, its own drain."""
