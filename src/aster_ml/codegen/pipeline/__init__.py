"""Software pipelining of loops in a Linear: parts of a turn run turns ahead, or on other warps."""
