"""Facts as data: the config of a model in parts, published variants, recipes, data sets, and position tables.

Nothing here imports Keras.
"""
