"""How far a conversion is, and the bar that shows it."""
