"""Who is let in, and what no request may do: hosts, headers, sessions, deadlines, sizes."""
