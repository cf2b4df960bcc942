"""Orders of the samples that a filter keeps, as if datasets held nothing else."""
