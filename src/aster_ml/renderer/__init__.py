"""From linear programs to source text, one module a language."""
