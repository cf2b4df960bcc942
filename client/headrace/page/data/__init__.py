"""Read what the page shows: datasets, samples by id, and values as pictures, text and numbers."""
