"""Read tables by the names that Unity Catalog has for them."""
