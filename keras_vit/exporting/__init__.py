"""From a trained model to a file that another runtime serves, or an engine here, proven to compute the same.

`export` stages, writes, opens, compares and publishes. A format is a sibling that has what `writers.Writer` declares.
"""
