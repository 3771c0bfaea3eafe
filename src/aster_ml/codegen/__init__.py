"""From one kernel to a list of nodes in running order; knows no devices and renders nothing."""
