"""The settings of a server: a file, the environment and the command line, as frozen values.

Nothing in this room prints secrets.
"""
