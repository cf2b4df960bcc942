"""Control access, and limit requests: hosts, headers, sessions, deadlines, sizes."""
