"""Read datasets and samples, and format values as pictures, text and numbers."""
