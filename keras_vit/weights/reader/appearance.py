"""What a file that is no checkpoint looks like, from its first bytes, and what to do about it."""

_CONVERT = "Save its arrays with `numpy.savez` or safetensors in a program that trusts it, and pass that file"
_KERAS = "Open it with `keras.saving.load_model`, which runs code of the file, only if you trust its source"
_ANEW = "Download it again"
_STARTS = [
    (b"version https://git-lfs.github.com/spec", "a Git LFS pointer", "Fetch the file itself with `git lfs pull`"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as .h5 weights of Keras are", _CONVERT),
    (b"\x93NUMPY", "a single .npy array", "Pass an .npz or safetensors file"),
    (b"\x1f\x8b", "a gzip archive", "Unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "Unpack it first"),
    (b"Rar!", "a rar archive", "Unpack it first"),
]
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))


def looks_like(start: bytes, size: int) -> tuple[str, str]:
    """What a file looks like, and what to do.

    Args:
        start: its first bytes, 512 are enough.
        size: how many it has.
    """
    if not size:
        return "0 bytes", _ANEW
    for magic, what, advice in _STARTS:
        if start.startswith(magic):
            return what, advice
    if start.startswith(_PICKLES):
        return "a pickle, as torch.save writes; unpickling runs code of the file, so it is never done here", _CONVERT
    if start[257:262] == b"ustar":
        return "a tar archive", "Unpack it first"
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        kind = "an XML page" if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<?xml") else "an HTML page"
        return f"{kind}, as a proxy, a login or an error sends", _ANEW
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start):
        return f"text, {start[:40].decode()!r}", _ANEW
    return f"no known format, its first bytes being {start[:8]!r}", "Pass an .npz or safetensors file"


def archive_looks_like(ends: bytes) -> tuple[str, str] | None:
    """What a zip looks like by its first and last bytes, where names stand, or `None` for nothing known."""
    if b"data.pkl" in ends:
        return "an archive with a pickle, as torch.save writes; unpickling runs code of the file", _CONVERT
    if b"model.weights.h5" in ends or b"config.json" in ends:
        return "a Keras .keras archive", _KERAS
    return None


def folder_looks_like(names) -> tuple[str, str]:
    """What a folder looks like by the names in it."""
    if {"saved_model.pb", "saved_model.pbtxt"} & set(names):
        return "a SavedModel, which is a program", _KERAS.replace("keras.saving.load_model", "tf.saved_model.load")
    return "a folder", "Pass the file in it"
