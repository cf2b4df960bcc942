"""What a person wants to know of a run: sums, a timeline and a picture."""
