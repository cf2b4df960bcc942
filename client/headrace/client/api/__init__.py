"""The datasets that users make: for PyTorch, NumPy and TensorFlow."""
