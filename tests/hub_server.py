"""A Hugging Face Hub on this machine, which huggingface_hub reads and writes, and what its cache looks like."""

import base64
import hashlib
import json

from fault_server import EMPTY_PACKAGES, FaultServer, Handler
from huggingface_hub import constants

COMMIT = "c" * 40
WEIGHTS = "model.safetensors"
CHILD = f"""{EMPTY_PACKAGES}
from keras_vit.weights.download import RemoteFile
from keras_vit.weights.download.hugging_face import fetch_from_hub
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
    What is written to it is one repository more, of the same contents, and each commit has another name.
    """

    def __init__(self):
        super().__init__(handler=_HubHandler)
        self.asked, self.route, self.tags, self.status, self.code = [], "ok", {}, 200, None
        self.commit, self.repositories, self.store, self.messages = COMMIT, {}, {}, []

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
            return self._head(404, 0, X_Error_Code="EntryNotFound", X_Repo_Commit=hub.commit)
        content = hub.contents[name]
        tag, size = hub.tags.get(name) or digest_of(name, content), len(content)
        if name != WEIGHTS:
            return self._head(200, size, ETag=f'"{tag}"', X_Repo_Commit=hub.commit)
        linked = {"X_Linked_Etag": f'"{tag}"', "X_Linked_Size": str(size), "X_Repo_Commit": hub.commit}
        store = f"http://localhost:{hub.server_port}/{hub.route}/{name}?signature=secret"
        return self._head(302, 0, Location=store, **linked)

    def do_GET(self):
        if not self.path.startswith("/api/models/"):
            return super().do_GET()
        name = "/".join(self.path.split("/")[3:5])
        facts = {"id": name, "sha": self.server.commit, "siblings": []}
        return self._answer(facts | {"private": self.server.repositories.get(name) == "private"})

    def do_PUT(self):
        """Takes an object of LFS, if it is the one that it is named after."""
        content, digest = self._body(), self.path.rpartition("/")[2]
        same = hashlib.sha256(content).hexdigest() == digest
        self.server.store |= {digest: content} if same else {}
        self._head(200 if same else 400, 0)

    def do_POST(self):
        hub, body = self.server, self._body()
        hub.asked.append(self.path.removeprefix("/"))
        if hub.status != 200:
            return self._head(hub.status, 0, X_Error_Code=hub.code)
        if self.path.endswith("/repos/create"):
            return self._create(json.loads(body))
        if self.path.endswith("/validate-yaml"):
            return self._answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            return self._answer({"files": [self._mode(file["path"]) for file in json.loads(body)["files"]]})
        if self.path.endswith("/lfs/objects/batch"):
            return self._answer({"objects": [self._place(each) for each in json.loads(body)["objects"]]})
        return self._commit([json.loads(line) for line in body.splitlines()])

    def _create(self, asked):
        name = f"{asked['organization']}/{asked['name']}"
        known = name in self.server.repositories
        self.server.repositories.setdefault(name, asked.get("visibility", "public"))
        self._answer({"url": f"{self.server.address}/{name}"}, 409 if known else 200)

    def _mode(self, name):
        content = self.server.contents.get(name)
        return {
            "path": name,
            "uploadMode": "lfs" if name == WEIGHTS else "regular",
            "shouldIgnore": False,
            "oid": None if content is None else digest_of(name, content),
        }

    def _place(self, asked):
        upload = {"href": f"{self.server.address}/lfs/{asked['oid']}"}
        return asked | ({} if asked["oid"] in self.server.store else {"actions": {"upload": upload}})

    def _commit(self, lines):
        """All operations at once; what cannot be is refused before any."""
        hub, contents = self.server, dict(self.server.contents)
        for key, said in ((line["key"], line["value"]) for line in lines):
            if key == "header":
                hub.messages.append(said["summary"])
            elif key == "file":
                contents[said["path"]] = base64.b64decode(said["content"])
            elif key == "lfsFile":
                contents[said["path"]] = hub.store[said["oid"]]
            else:
                del contents[said["path"]]
        hub.contents, hub.commit = contents, hashlib.sha1(repr(sorted(contents.items())).encode()).hexdigest()
        repository = self.path.removeprefix("/api/models/").partition("/commit/")[0]
        self._answer({"commitUrl": f"{hub.address}/{repository}/commit/{hub.commit}", "commitOid": hub.commit})

    def _body(self):
        self.close_connection = True
        if self.headers["Content-Length"]:
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):  # what has no length comes in chunks
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        return b"".join(parts)

    def _answer(self, facts, status=200):
        text = json.dumps(facts).encode()
        self._head(status, len(text), Content_Type="application/json")
        self.wfile.write(text)

    def _send_spliced(self):
        """Half of a body, and for who asks for the rest bytes of another file."""
        if not self.headers["Range"]:
            return self._send_cut()
        size = len(self.server.contents[WEIGHTS])
        start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        self._head(206, size - start, Content_Range=f"bytes {start}-{size - 1}/{size}")
        self.wfile.write(bytes(size - start))


def turn_to(server, monkeypatch, folder):
    """Has huggingface_hub ask this server alone, with an empty cache in a folder and nobody's token."""
    template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    settings = {"ENDPOINT": server.address, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_OFFLINE": False}
    settings |= {"HF_HUB_CACHE": str(folder / "hub"), "HF_TOKEN_PATH": str(folder / "token")}
    settings |= {"HF_HUB_DISABLE_TELEMETRY": True, "HF_HUB_DISABLE_SYMLINKS": False, "DOWNLOAD_CHUNK_SIZE": 1 << 12}
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)


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
