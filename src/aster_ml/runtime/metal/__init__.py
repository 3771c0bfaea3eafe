"""Devices of Metal: memory, queues and recorded launches, by messages to Apple's libraries."""
