"""Convert on this machine without Spark: a thread a core, and a shuffle in bounded memory."""
