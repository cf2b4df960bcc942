"""Images: decoded, cropped, scaled and recoloured, as pure functions of a file and of draws."""
