"""Models of words and photos: the text tower, and what is made of it and an image tower."""
