"""Which server is asked, over which channel, and the private server that a job may start."""
