"""Change batches before they are sent: casts, padding, images, registered transforms."""
