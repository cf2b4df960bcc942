"""The order of one dataset, and single steps of it for loops that work out samples themselves."""
