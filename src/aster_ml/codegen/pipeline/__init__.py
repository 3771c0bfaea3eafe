"""Software pipelining in a Linear: parts of an iteration run ahead of others, or on other warps."""
