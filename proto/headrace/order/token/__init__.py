"""Resume tokens: all that a checkpoint needs to go on with the same samples."""
