"""The order of several datasets drawn together by weight, and all that describes such a mixture."""
