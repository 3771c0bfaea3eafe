"""Default schedules of CPUs, by cost: which Opts a kernel gets. Nothing here rewrites a graph."""
