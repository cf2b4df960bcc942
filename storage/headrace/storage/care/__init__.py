"""Keep datasets whole: verify, repair, and remove what nobody can need."""
