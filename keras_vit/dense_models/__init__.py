"""Models that answer for each pixel, from names and files: encoder, taps, head, and the way back to the image."""
