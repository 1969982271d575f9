"""Layers after an encoder that make maps: taps of blocks as maps, heads on them, and resizes to the image."""
