"""A web page that shows datasets, orders, runs and streams, in a separate process.

The page is read-only and rendered on the server. The contents of datasets are untrusted. They reach
a browser only as escaped text, as pictures, or as files of types that cannot run code.
"""
