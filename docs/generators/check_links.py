"""Looks through built documentation: every link leads to a file and an anchor, and no page needs a network to be shown.

    python docs/generators/check_links.py build/docs

Prints what is wrong, one line each, and ends with 1 if anything is. Links to other sites are allowed; whether these
answer is not looked at.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SHOWN = {"src", "srcset", "poster", "data"}  # attributes whose files a page needs to be shown
_NOT_NEEDED = {"canonical", "next", "prev", "index", "search", "help", "copyright", "author", "alternate"}  # of <link>
_OF_STYLES = re.compile(r"""(?:@import\s+|url\()\s*["']?([^"')\s]+)""")


class Page(HTMLParser):
    """A page's anchors, its links, and what it needs to be shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.needs: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found and tag != "meta"}
        for name in SHOWN & found.keys():
            values = found[name].split(",") if name == "srcset" else [found[name]]
            self.needs += [value.split()[0] for value in values if value.strip()]
        if "href" in found:
            needed = tag == "link" and not set(found.get("rel", "").split()) & _NOT_NEEDED
            (self.needs if needed else self.links).append(found["href"])
        if found.get("http-equiv", "").lower() == "refresh":  # the page of an old address
            self.links.append(found["content"].partition("url=")[2])
        self.needs += _OF_STYLES.findall(found.get("style", ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)


def problems(folder: Path) -> list[str]:
    """What is wrong in the built pages of a folder, one line each: the file, and the link.

    Raises:
        ValueError: if there is no page.
    """
    folder = folder.resolve()
    files = (path for path in sorted(folder.rglob("*.html")) if path.parent != folder / "_static")  # no templates
    pages = {path: Page(path.read_text(errors="replace")) for path in files}
    if not pages:
        raise ValueError(f"the folder must hold built pages.\nReceived: {folder}, with no .html file.")
    found = []
    for path, page in pages.items():
        where = path.relative_to(folder)
        found += [f"{where}: needs {need}, from a network" for need in page.needs if _is_of_a_network(need)]
        links = (link for link in (*page.needs, *page.links) if not _is_elsewhere(link))
        found += [f"{where}: {link}: {wrong}" for link in links if (wrong := _wrong(link, path, folder, pages))]
    for path in sorted(folder.rglob("*.css")):
        needs = _OF_STYLES.findall(re.sub(r"/\*.*?\*/", "", path.read_text(errors="replace"), flags=re.DOTALL))
        found += [f"{path.relative_to(folder)}: needs {n}, from a network" for n in needs if _is_of_a_network(n)]
    return found


def _is_of_a_network(link):
    return link.startswith("//") or urlsplit(link).scheme in ("http", "https", "ftp")


def _is_elsewhere(link):
    """Whether a link is no matter of these files."""
    return _is_of_a_network(link) or urlsplit(link).scheme in ("mailto", "data", "javascript")


def _wrong(link, path, folder, pages):
    """What is wrong with a link of a page to a file or anchor of this folder; `None` if nothing is."""
    parts = urlsplit(link)
    if parts.scheme or parts.path.startswith("/"):
        return "an absolute path"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(folder):
        return "leads out of the documentation"
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors | {"top"}:
        return "no such anchor"
    return None


def main() -> int:
    """Checks the folder that is named on the command line."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    found = problems(Path(sys.argv[1]))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
