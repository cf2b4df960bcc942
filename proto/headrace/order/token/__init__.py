"""Resume tokens: all that a checkpoint needs to continue with the same samples."""
