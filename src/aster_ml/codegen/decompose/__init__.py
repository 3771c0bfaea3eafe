"""Ops that a target lacks, written with those that it has."""
