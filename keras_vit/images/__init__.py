"""From files of photos to upright pixels and on to a model's input, by one rule for training, export and serving.

`headers` reads sizes and orientations and holds the limits. `decode` gives pixels in a graph, `read` those of one file,
and `validation` finds files that cannot be decoded. `preprocessing` and `resizing` prepare pixels.
"""
