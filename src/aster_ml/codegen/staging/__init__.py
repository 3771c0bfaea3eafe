"""Values kept in scratch memory: panels, rows, halos, accumulators, packed words."""
