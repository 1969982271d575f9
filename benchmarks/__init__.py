"""What is measured from a checkout: `python -m benchmarks` times this package and other software.

Every runner is a process of its own. Nothing of a peer is imported here: `peers/` holds files that the peer's
interpreter runs by their path, without this package. They import each other by the bare name.
"""
