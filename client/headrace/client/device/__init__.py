"""Bring batches to a GPU: pinned memory and transfers on a stream beside the loop's."""
