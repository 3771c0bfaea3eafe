"""Lists rewrite rules of scalar expressions: integers, conditions, sums, constants."""
