"""Makes the relative links of README.md absolute, since a package index shows the page away from the repository.

    python docs/generators/absolute_links.py https://github.com/OWNER/NAME v1.2.3

It rewrites README.md where it stands: the release workflow does so before it builds. Links lead to the page of a file
or folder at that tag or commit, pictures to the file's bytes.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
_CODE = r"^```.*?^```$|`[^`\n]+`"  # in which nothing is a link
_LINK = re.compile(rf"{_CODE}|(?P<picture>!?)(?P<text>\[[^\]]*\])\((?P<to>[^)\s]+)\)", re.DOTALL | re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//|#")  # absolute already, or an anchor of the page itself


def absolute(text: str, repository: str, ref: str, root: Path = README.parent) -> str:
    """Markdown with absolute links and pictures.

    Args:
        text: of a page at the top of the repository.
        repository: its address, as `https://github.com/OWNER/NAME`.
        ref: tag or commit that links lead to.
        root: folder of the checkout, which tells files from folders.

    Raises:
        ValueError: for an address that is not https, an empty `ref`, or a link to what is not there.
    """
    if not re.fullmatch(r"https://[^/\s]+/\S+", repository) or not ref:
        raise ValueError(f"links need a repository's https address and a tag.\nReceived: {repository!r}, {ref!r}.")

    def replaced(link):
        if link["to"] is None or _ELSEWHERE.match(link["to"]):
            return link[0]
        target = root / link["to"].partition("#")[0]
        if not target.exists():
            raise ValueError(f"every link must lead to a file or folder.\nReceived: {link['to']}, which is not there.")
        form = "raw" if link["picture"] else "tree" if target.is_dir() else "blob"
        return f"{link['picture']}{link['text']}({repository.rstrip('/')}/{form}/{ref}/{link['to']})"

    return _LINK.sub(replaced, text)


def main() -> int:
    """Rewrites the README for the repository and the ref of the command line."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    README.write_text(absolute(README.read_text(), *sys.argv[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
