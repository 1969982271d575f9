"""Draws `docs/pictures/report_page.png`: the report of a run, as Chromium shows it in two columns.

    python docs/generators/report.py

The run is `keras-vit finetune --data digits`: four to six minutes on one core. `--run FOLDER` draws one that is there.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

PICTURE = Path(__file__).parents[1] / "pictures" / "report_page.png"
_SIZE = 1800, 2000  # pixels of the window; what stays white below and beside the page is cut off
_SIDE = 1200  # pixels, the width of the picture
_COLUMNS = (
    "body { max-width: none; width: 1700px; columns: 2; column-gap: 80px } section, .figures { break-inside: avoid }"
)


def draw(report: Path, picture: Path, browser: str) -> None:
    """A picture of the page `report.html`."""
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "report.html", Path(folder) / "shot.png"
        page.write_text(report.read_text() + f"<style>{_COLUMNS}</style>")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--window-size={_SIZE[0]},{_SIZE[1]}", f"--screenshot={shot}", page.as_uri()]
        subprocess.run([browser, *options], check=True, capture_output=True, timeout=120)
        with Image.open(shot) as drawn:
            pixels = drawn.convert("RGB")
    right, bottom = ImageChops.difference(pixels, Image.new("RGB", pixels.size, pixels.getpixel((0, 0)))).getbbox()[2:]
    cut = pixels.crop((0, 0, min(right + 20, _SIZE[0]), min(bottom + 20, _SIZE[1])))
    small = cut.resize((_SIDE, round(cut.height * _SIDE / cut.width)), Image.Resampling.LANCZOS)
    small.quantize(256).save(picture, optimize=True)


def main() -> None:
    """Trains, unless a run is given, and draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="the folder of a run; by default one is made of the digits")
    parser.add_argument("--out", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    if (browser := shutil.which("chromium")) is None:
        parser.error("no chromium is on the PATH, which draws the page.")
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run
        if run is None:
            import keras_vit

            run = keras_vit.finetune("digits", Path(folder) / "run").out
        draw(run / "report.html", arguments.out, browser)


if __name__ == "__main__":
    main()
