"""Blocks and patches of other kinds than the paper's: axial attention, merged tokens, grids of one length."""
