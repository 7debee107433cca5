"""Pre-flight checks of this node: the processes of their loads, what is known of the node, and the results."""
