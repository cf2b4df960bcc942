"""Report on a run: figures, a timeline and a picture."""
