"""The front: takes calls in, tells callers apart, and gives threads what is there to be done."""
