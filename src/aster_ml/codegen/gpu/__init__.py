"""Default schedules and local memory of devices that have work-groups."""
