"""Carries out what Opts ask of work-groups: local memory, tensor cores, bulk copies."""
