"""What nodes share: switches, racks, power feeds, coolant loops. Which of these explains nodes that fail or slow down together."""
