"""What a running server does: one question a second at most, and none if nobody looks."""
