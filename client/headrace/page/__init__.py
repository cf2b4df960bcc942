"""A web page that shows datasets, orders, runs and streams, in a separate process.

It is read-only and rendered on the server. The contents of datasets are untrusted: they reach a
browser only as escaped text, as pictures, or as files of types that run nothing.
"""
