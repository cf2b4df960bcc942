"""Show numbers, samples, images and progress on a terminal, and samples as pages."""
