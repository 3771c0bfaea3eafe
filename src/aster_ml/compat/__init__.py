"""Names that programs of this family of frameworks import from elsewhere than Aster has them."""
