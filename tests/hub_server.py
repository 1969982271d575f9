"""A Hugging Face Hub of one commit on this machine, for huggingface_hub itself, and what its cache looks like."""

import hashlib

from fault_server import FaultServer, Handler

COMMIT = "c" * 40
WEIGHTS = "model.safetensors"
CHILD = """
import sys, types
for name in ("keras_vit", "keras_vit.weights"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
from keras_vit.weights.fetch import RemoteFile
from keras_vit.weights.fetch.from_hugging_face import fetch_from_hub
file = RemoteFile("https://huggingface.co/me/mine/resolve/main/model.safetensors", "hf/me/mine/model.safetensors")
print(fetch_from_hub(file, "me/mine", None, lambda path: None), "keras" in sys.modules, "tensorflow" in sys.modules)
"""


def digest_of(name, content):
    """As the Hub lists it: sha256 of what is in LFS, as weights are, and Git's sha1 of the rest."""
    if name == WEIGHTS:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubServer(FaultServer):
    """Has `contents` in every repository; weights lie in a store, `route` of `FaultServer` on another host's name.

    `tags` are the digests that it lists where they are a lie; `status` and `code` answer every question if not 200.
    """

    def __init__(self):
        super().__init__(handler=_HubHandler)
        self.asked, self.route, self.tags, self.status, self.code = [], "ok", {}, 200, None

    @property
    def downloads(self):
        """The last parts of the paths of the files that were sent."""
        return [path.partition("?")[0].rpartition("/")[2] for path, _ in self.log]


class _HubHandler(Handler):
    def do_HEAD(self):
        hub, name = self.server, self.path.rpartition("/")[2]
        hub.asked.append(self.path.removeprefix("/"))
        self.close_connection = True
        if hub.status == "hang":
            return hub.released.wait(20)
        if hub.status != 200:
            return self._head(hub.status, 0, X_Error_Code=hub.code)
        if name not in hub.contents:
            return self._head(404, 0, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        content = hub.contents[name]
        tag, size = hub.tags.get(name) or digest_of(name, content), len(content)
        if name != WEIGHTS:
            return self._head(200, size, ETag=f'"{tag}"', X_Repo_Commit=COMMIT)
        linked = {"X_Linked_Etag": f'"{tag}"', "X_Linked_Size": str(size), "X_Repo_Commit": COMMIT}
        store = f"http://localhost:{hub.server_port}/{hub.route}/{name}?signature=secret"
        return self._head(302, 0, Location=store, **linked)

    def _send_spliced(self):
        """Half of a body, and for who asks for the rest bytes of another file."""
        if not self.headers["Range"]:
            return self._send_cut()
        size = len(self.server.contents[WEIGHTS])
        start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        self._head(206, size - start, Content_Range=f"bytes {start}-{size - 1}/{size}")
        self.wfile.write(bytes(size - start))


def put_into_cache(root, contents, repository="me/mine", links=True):
    """Files as huggingface_hub itself leaves them, with links to blobs or without; gives the snapshot's folder."""
    folder = root / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    for each in (snapshot, folder / "blobs", folder / "refs"):
        each.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    for name, content in contents.items():
        if links:
            blob = folder / "blobs" / digest_of(name, content)
            blob.write_bytes(content)
            (snapshot / name).symlink_to(f"../../blobs/{blob.name}")
        else:
            (snapshot / name).write_bytes(content)
    return snapshot
