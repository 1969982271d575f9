"""How fast models run and how much memory they take, beside other software with the same weights.

Every runner is a process of its own. Nothing of a peer is imported here: `peers/` holds files that the peer's
interpreter runs by their path, without this package.
"""
