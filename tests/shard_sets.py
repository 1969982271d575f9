"""Shards of labelled photos, written without anything of ours: tars by `tarfile`, records by TensorFlow."""

import io
import tarfile
from pathlib import Path


def rows_of(folder):
    """`(class, name, bytes)` of every photo in a folder of classes, in the order that the package gives them."""
    return [(file.parent.name, file.name, file.read_bytes()) for file in sorted(Path(folder).glob("*/*"))]


def members_of(rows, by_name=False):
    """Members of a tar as WebDataset writes them: numbered photos, and labels as numbers or names."""
    classes = sorted({name for name, _, _ in rows})
    for number, (name, file, data) in enumerate(rows):
        yield f"{number:06}{Path(file).suffix}", data
        yield f"{number:06}.cls", (name if by_name else str(classes.index(name))).encode()


def write_tar(path, members, kind=tarfile.USTAR_FORMAT):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path
