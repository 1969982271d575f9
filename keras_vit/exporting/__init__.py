"""From a trained model to a file that another runtime serves, or an engine here, proven to compute the same.

`export` stages, writes, opens, compares and publishes; a format is a sibling with EXTENSION, PRECISIONS, CALIBRATED
(precisions that are calibrated on photos), `write` and `open_runtime`.
"""
