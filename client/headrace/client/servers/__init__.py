"""Choose a server and its channel, or start a private server for a job."""
