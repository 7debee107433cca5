"""Active tests of the network between the nodes of an allocation (`rankmend fabric`)."""
