"""The page: datasets, orders, runs and streams as a person looks at them, in a process of its own.

It is read-only and server-rendered. What a dataset holds is a stranger's: no byte of it reaches a
browser but as escaped text, as a picture, or as a file of a type that runs nothing.
"""
