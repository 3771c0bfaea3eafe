"""Default schedules of devices that have work-groups, by cost."""
