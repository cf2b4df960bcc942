"""What lies at the paths that a user gives, and how Spark reads it."""
