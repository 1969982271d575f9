"""Engines: a model computed by the software that is fastest here, called as the model is called.

`accelerate` opens a model in an engine and compares the outputs with the model's. Files for engines are temporary or in
the cache.
"""
