"""What a terminal shows: numbers and samples as text, images, pages, and how far work is."""
