"""What is done to a batch before it travels: casts, padding, images, registered transforms."""
