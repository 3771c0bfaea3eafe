"""Where graph and devices meet: memory of nodes, compiling, launching, realizing."""
