"""Show values, images and progress on a terminal, and write samples as pages."""
