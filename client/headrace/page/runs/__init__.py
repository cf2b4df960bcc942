"""Orders and runs: what comes at which position, and where a token stands."""
