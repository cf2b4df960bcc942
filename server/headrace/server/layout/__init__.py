"""How columns travel and how blocks lie in memory: pure arithmetic over Arrow schemas."""
