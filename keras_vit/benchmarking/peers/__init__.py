"""What a benchmark's processes run: each file by its path, in an interpreter that may not have this package.

So they import each other by the bare name. A file has a name of its own, since its folder comes first on the path.
"""
