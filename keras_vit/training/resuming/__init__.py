"""A checkpoint as one atomic unit: there whole and proven by checksums, or not there at all.

`tensor_file` is one file of arrays, and `checkpoint_folder` the folder of checkpoints. `variables` finds the
variables of a training and copies them to the host and back, and `async_writer` writes them in a thread.
`coordination` is for several processes. The callback is in `keras_vit.training.checkpoints`.
"""
