"""A load test on the command line: what it shall do, and what it found."""
