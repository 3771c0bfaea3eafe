"""The graph: ops, nodes, patterns, rewriting, and the meaning of every op."""
