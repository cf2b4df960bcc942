"""Take calls in, tell callers apart, and give threads only what is ready to be worked on."""
