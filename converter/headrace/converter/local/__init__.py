"""Convert on this machine without Spark, with a thread per core, and shuffle in limited memory."""
