"""Plans each group of faults, one module a group: reads the node, and changes nothing until a plan is carried out."""
