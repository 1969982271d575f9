"""Turns the scripts of `docs/notebooks` into notebooks, and runs them.

    python docs/generators/notebooks.py [fine_tune_photos ...]      writes and runs them, and keeps what they print

A script has the form of keras.io's examples: a header in a docstring with title, author, dates, description and
accelerator; then text in triple-quoted blocks, and code between them. A text block that begins with `\"\"\"shell` holds
commands, which a notebook shows and does not run.
"""

import argparse
import os
import re
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "notebooks"
ROOT = Path(__file__).parents[2]
FIELDS = ("Title", "Author", "Date created", "Last modified", "Description", "Accelerator")
SECONDS = 600  # that a cell may take, on a machine that does other work too
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cells_of(script: str) -> list[tuple[str, str]]:
    """`("markdown" | "code", source)` of each cell, the header first.

    Raises:
        ValueError: for a header that lacks a field, or a block that does not end.
    """
    parts = re.split(r'^"""', script, flags=re.MULTILINE)
    if len(parts) % 2 == 0 or parts[0].strip():
        raise ValueError("a script must begin with its header in three quotes, and every block must end.")
    cells = [("markdown", _header(parts[1]))]
    for index, part in enumerate(parts[2:]):
        text = part.strip("\n")
        if not text.strip():
            continue
        if index % 2 == 0:
            cells.append(("code", text))
        elif text.startswith("shell\n"):
            cells.append(("markdown", f"```sh\n{text.removeprefix('shell').strip()}\n```"))
        else:
            cells.append(("markdown", text))
    return cells


def _header(text):
    found = dict(re.findall(r"^([A-Z][\w ]+): (.+)$", text, re.MULTILINE))
    if tuple(found) != FIELDS:
        raise ValueError(f"the header of a script must have {', '.join(FIELDS)}.\nReceived: {', '.join(found)}.")
    lines = (f"**{field}:** {found[field]}" for field in FIELDS[1:])
    return f"# {found['Title']}\n\n" + "<br>\n".join(lines)


def notebook_of(script: str):
    """The notebook of a script, without outputs; a cell's id is its place, so that it stays when others change."""
    import nbformat

    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    cells = [make[kind](source, id=f"cell-{index}") for index, (kind, source) in enumerate(cells_of(script))]
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": _KERNEL})


def run(notebook, folder: Path):
    """Runs a notebook in a folder and gives it with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell does.
    """
    from nbclient import NotebookClient

    environment = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    client = NotebookClient(
        notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}, record_timing=False
    )
    client.execute(env=environment)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(filter(None, map(_kept, cell.outputs)))
    notebook.metadata = {"kernelspec": _KERNEL, "language_info": {"name": "python"}}
    return notebook


def _kept(output):
    """An output without what differs from machine to machine; what libraries say of the processor is left out."""
    if output.output_type == "stream" and output.name == "stderr":
        return None
    if "data" in output:
        output.data.pop("text/html", None)
        if "image/png" in output.data:
            output.data.pop("text/plain", None)
    return output


def main():
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    parser.add_argument("names", nargs="*", default=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to; by default beside the scripts")
    arguments = parser.parse_args()
    for name in arguments.names:
        notebook = notebook_of((FOLDER / f"{name}.py").read_text())
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(notebook, Path(folder)), arguments.out / f"{name}.ipynb")
        print(name, flush=True)


if __name__ == "__main__":
    main()
