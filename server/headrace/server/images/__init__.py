"""Decode, crop, scale and recolour images, as pure functions of files and random draws."""
