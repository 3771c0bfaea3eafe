"""Runs Metal devices: memory, queues and recorded launches, by messages to Apple's libraries."""
