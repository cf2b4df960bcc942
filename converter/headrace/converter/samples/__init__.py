"""Apply a user's function to samples, and assign samples to splits."""
