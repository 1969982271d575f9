"""Files of photos to upright pixels: one rule for training, predicting, exporting and serving.

`segments` reads what a file says of itself and holds the limits, `decode` gives pixels in a graph, `exif` tells how a
camera was held, `check` finds files that cannot be decoded, and `read` gives the pixels of one file.
"""
