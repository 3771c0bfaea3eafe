"""From a scheduled kernel to a list of nodes: index arithmetic, order."""
