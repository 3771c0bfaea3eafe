"""Default schedules: which Opts a kernel gets. Nothing here rewrites a graph."""
