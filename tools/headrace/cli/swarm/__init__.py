"""The options and the results of a load test on the command line."""
