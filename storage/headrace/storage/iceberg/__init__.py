"""Read Iceberg tables by the names that their catalogs have for them."""
