"""What every order is computed with: the hash, permutations, segments of arrays, shared checks.

The hash and the permutations are part of the specification: changing them changes the order.
"""
