"""How columns are sent and how blocks lie in memory: pure arithmetic over Arrow schemas."""
