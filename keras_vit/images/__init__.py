"""From files of photos to upright pixels and on to a model's input, by one rule for training, export and serving.

`segments` reads headers and holds the limits. `exif` finds the orientation, `decode` gives pixels in a graph, `read`
those of one file, and `photo_checks` finds files that cannot be decoded. `preprocessing` and `resizing` prepare pixels.
"""
