"""Report on a run: rates, a timeline and a picture."""
