"""What checks the built documentation finds what is broken; the documentation itself is built and searched if slow."""

import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "docs" / "generators"))
import check_links
import report

GOOD = '<h1 id="top-of-it">A</h1><a href="b/c.html#there">x</a> <a href="#top-of-it">y</a> <img src="p%20q.png">'
TELEPHONE = 400  # pixels
PAGES = {
    "a.html": GOOD,
    "b/c.html": '<p id="there"><a href="../a.html">z</a><a href="https://x.org">n</a>',
    "p q.png": "",
}


def write(folder, **pages):
    for name, text in (PAGES | pages).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_good_pages_have_no_problem(tmp_path):
    assert check_links.problems(write(tmp_path)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="gone.html">', "gone.html: no such file"),
        ('<a href="b/c.html#gone">', "b/c.html#gone: no such anchor"),
        ('<a href="#gone">', "#gone: no such anchor"),
        ('<a href="b">', "b: no such file"),
        ('<img src="gone.png"/>', "gone.png: no such file"),
        ('<a href="/a.html">', "/a.html: an absolute path"),
        ('<a href="file:///a.html">', "file:///a.html: an absolute path"),
        ('<a href="../../x.html">', "../../x.html: leads out of the documentation"),
        ('<script src="https://cdn.org/x.js"></script>', "needs https://cdn.org/x.js, from a network"),
        ('<link rel="stylesheet" href="//cdn.org/x.css">', "needs //cdn.org/x.css, from a network"),
        ('<img srcset="p%20q.png 1x, https://cdn.org/x.png 2x">', "needs https://cdn.org/x.png, from a network"),
        ('<p style="background: url(https://cdn.org/x.png)">', "needs https://cdn.org/x.png, from a network"),
    ],
)
def test_what_is_broken_is_named(tmp_path, text, problem):
    found = check_links.problems(write(tmp_path, **{"d.html": text}))
    assert [line for line in found if "from a network" in problem or "network" not in line] == [f"d.html: {problem}"]


def test_styles_need_no_network(tmp_path):
    styles = '/* url(https://in.a.comment) */ @import "near.css"; a { background: url("https://cdn.org/x.woff2"); }'
    found = check_links.problems(write(tmp_path, **{"s.css": styles}))
    assert found == ["s.css: needs https://cdn.org/x.woff2, from a network"]


def test_folder_without_pages_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must hold built pages"):
        check_links.problems(tmp_path)


def test_command_says_what_is_wrong(tmp_path):
    command = [sys.executable, str(ROOT / "docs" / "generators" / "check_links.py")]
    assert subprocess.run([*command, str(write(tmp_path))], check=False).returncode == 0
    done = subprocess.run(
        [*command, str(write(tmp_path, **{"d.html": '<a href="x">'}))], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "d.html: x: no such file\n")


# The documentation


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    for name in ("sphinx", "sphinx_book_theme", "myst_nb"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("docs") / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(folder)]
    subprocess.run(command, check=True, timeout=500)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_documentation_is_built_without_a_warning_and_its_links_lead_somewhere(built):
    assert check_links.problems(built) == []
    assert "Vision Transformer" in (built / "reference" / "build_a_model.html").read_text()
    for made in ("weights/augreg", "notebooks/look_inside"):
        assert (built / f"{made}.html").is_file()
    assert [path for path in built.rglob("*.html") if str(ROOT) in path.read_text()] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_search_answers_from_the_file_system(built):
    if (browser := shutil.which("chromium")) is None:
        pytest.skip("no Chromium on the PATH")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=10000"]
    address = f"{(built / 'search.html').as_uri()}?q=mirrored"
    page = subprocess.run([browser, *options, address], capture_output=True, text=True, timeout=120, check=True).stdout
    results = page.partition('id="search-results"')[2].partition("</ul>")[0]
    assert int(re.search(r"found (\d+) pages? matching", results)[1]) > 3
    assert 'href="devices.html"' in results


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_page_is_wider_than_a_telephone(built):
    """Tables and code scroll within themselves: a page itself does so up and down only."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install .[test]")
    if (place := shutil.which("chromium")) is None:
        pytest.skip("no Chromium on the PATH")
    pages = [path for path in sorted(built.rglob("*.html")) if path.parent != built / "_static"]  # no templates
    assert len(pages) > 50
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=["--no-sandbox"])
        tab, wide = browser.new_page(viewport={"width": TELEPHONE, "height": 900}), {}
        assert width_of(tab, "data:text/html,<p style='width: 450px'>wide</p>") > TELEPHONE
        for page in pages:
            if (width := width_of(tab, page.as_uri())) > TELEPHONE:
                wide[str(page.relative_to(built))] = width
        browser.close()
    assert wide == {}


def width_of(tab, address):
    """How wide a page is with what stands out of it, in pixels."""
    tab.goto(address)
    return tab.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")


@pytest.mark.slow
def test_picture_of_a_report_has_its_sections_in_two_columns(tmp_path):
    browser = shutil.which("chromium") or pytest.skip("no chromium is on the PATH")
    image = pytest.importorskip("PIL.Image")
    sections = [f'<section style="background: {colour}; height: 900px"></section>' for colour in ("red", "blue")]
    page = tmp_path / "report.html"
    page.write_text("<!doctype html><body>" + "".join(sections))
    report.draw(page, tmp_path / "drawn.png", browser)
    with image.open(tmp_path / "drawn.png") as drawn:
        pixels = drawn.convert("RGB")
    assert pixels.width == 1200
    middle = pixels.height // 2
    assert [pixels.getpixel((x, middle)) for x in (300, 900)] == [(255, 0, 0), (0, 0, 255)]
