"""The settings of a server: a file, the environment and the command line, as frozen values.

Secrets never show in what this room prints.
"""
