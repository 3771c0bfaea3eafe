"""Default schedules of CPUs, by cost."""
