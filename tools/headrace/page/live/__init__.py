"""Query a running server regularly, keep half an hour of it, and put it into words."""
