"""What people and indexes read beside the code: versions agree, links lead somewhere, forms and workflows are valid."""

import configparser
import datetime
import re
import sys

import pytest
import yaml
from conftest import ROOT

import keras_vit

sys.path.append(str(ROOT / "docs" / "generators"))
import absolute_links

PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
KINDS = {"textarea", "input", "dropdown", "checkboxes", "markdown"}  # of GitHub's issue forms


@pytest.fixture(scope="module")
def setup():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    return settings


@pytest.fixture(scope="module")
def release():
    return yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())


def versions_of_the_changelog():
    """`{version: day}`, from the newest."""
    return dict(re.findall(r"^## (\d\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))


def test_version_is_the_same_everywhere(setup):
    version = setup["metadata"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version == next(iter(versions_of_the_changelog()))


def test_changelog_goes_back_in_order_and_begins_with_what_is_not_released():
    found = [tuple(map(int, version.split("."))) for version in versions_of_the_changelog()]
    assert found == sorted(found, reverse=True)
    days = [datetime.date.fromisoformat(day) for day in versions_of_the_changelog().values()]
    assert days == sorted(days, reverse=True)
    headings = re.findall(r"^## .*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert len(headings) == len(found) + 1  # every version has its day
    assert "# Changelog\n\n## Unreleased\n\n" in (ROOT / "CHANGELOG.md").read_text()


def test_citation_names_the_software_and_the_paper(setup):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # which the format requires
    assert citation["license"] == setup["metadata"]["license_expression"]
    assert [author["name"] for author in citation["authors"]] == [setup["metadata"]["author"]]
    (paper,) = citation["references"]
    assert paper["identifiers"][0]["value"] == "arXiv:2010.11929"
    assert len(paper["authors"]) == 12


def test_classifiers_have_the_pythons_that_are_supported(setup):
    classifiers = setup["metadata"]["classifiers"].split("\n")
    pythons = [line.rpartition(" ")[2] for line in classifiers if re.search(r":: 3\.\d+$", line)]
    assert pythons[0] == setup["options"]["python_requires"].removeprefix(">=")
    assert f"Python {pythons[0]} to {pythons[-1]}." in (ROOT / "README.md").read_text()
    assert not [line for line in classifiers if line.startswith("License ::")]  # the licence is an SPDX expression


@pytest.mark.parametrize("name", PAGES)
def test_links_of_the_pages_at_the_top_lead_to_files(name):
    text = (ROOT / name).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert [line for line in text.splitlines() if len(line) > 400] == []


def test_pages_for_contributors_name_what_is_there():
    assert (ROOT / "tests" / "golden" / "foreign" / "cases.json").is_file()
    names = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "own_export.md").read_text(), re.MULTILINE)
    assert len(names) == 7
    module = ROOT / "keras_vit" / "exporting" / "formats" / "format.py"
    for name in names:
        assert re.search(rf"\b{name}\b", module.read_text()), name


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_form_is_one_that_the_host_takes(path):
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert form == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= form.keys()
    assert {field["type"] for field in form["body"]} <= KINDS
    labels = [field["attributes"]["label"] for field in form["body"]]
    assert len(set(labels)) == len(labels) > 1


def test_release_tries_both_files_before_it_publishes_without_a_secret(release, setup):
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert release["jobs"]["publish"]["needs"] == "build"
    assert release["permissions"] == {"contents": "read"}
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    commands = "\n".join(step.get("run", "") for step in release["jobs"]["build"]["steps"])
    for command in ("python -m build", "twine check --strict dist/*", "dist/*.whl dist/*.tar.gz", "keras-vit models"):
        assert command in commands
    pythons = re.findall(r":: Python :: (3\.\d+)$", setup["metadata"]["classifiers"], re.MULTILINE)
    assert f"for python in python{pythons[0]} python{pythons[-1]}; do" in commands
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_releases_checks_find_the_version_of_today(release, setup):
    """The lines that its first step looks for, by the same rule: a pattern, and a whole line of the file."""
    step = next(step["run"] for step in release["jobs"]["build"]["steps"] if "grep" in step.get("run", ""))
    version = setup["metadata"]["version"]
    for line, file in re.findall(r'grep -qx "(.*)" (\S+)', step):
        wanted = line.replace("${GITHUB_REF_NAME#v}", version)
        assert [each for each in (ROOT / file).read_text().splitlines() if re.fullmatch(wanted, each)], wanted


def test_workflow_has_every_python_and_both_scripts(setup):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    classifiers = setup["metadata"]["classifiers"]
    assert matrix["python"] == re.findall(r":: (3\.\d+)$", classifiers, re.MULTILINE)
    assert all((ROOT / ".ci" / script).stat().st_mode & 0o100 for script in matrix["script"])
    assert workflow["permissions"] == {"contents": "read"}


def test_short_form_names_tests_and_bounds_that_are_there(setup):
    script = (ROOT / ".ci" / "run-oldest").read_text()
    assert [path for path in re.findall(r"tests/[\w/]+\.py", script) if not (ROOT / path).is_file()] == []
    for name in re.findall(r"\(oldest ([\w-]+)\)", script):
        assert re.search(rf"^ +{name}>=[0-9.]+", (ROOT / "setup.cfg").read_text(), re.MULTILINE), name


# Links of a released README


def test_releases_readme_has_absolute_links_alone(release):
    """It is rewritten before the files are built; what a tag's page shows is what the relative link led to."""
    commands = [step.get("run", "") for step in release["jobs"]["build"]["steps"]]
    rewrite = 'python docs/generators/absolute_links.py "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY" "$GITHUB_REF_NAME"'
    assert commands.index(rewrite) < commands.index("python -m build")
    text = (ROOT / "README.md").read_text()
    found = absolute_links.absolute(text, "https://x.org/a/b", "v1.2.3")
    targets = [link for link in re.findall(r"\]\(([^)]+)\)", found) if not re.match("https?://", link)]
    assert targets == []
    assert "](https://x.org/a/b/raw/v1.2.3/docs/pictures/front.png)" in found
    assert "](https://x.org/a/b/blob/v1.2.3/docs/index.md)" in found
    assert re.sub(r"https://x.org/a/b/(?:raw|blob|tree)/v1.2.3/", "", found) == text


def test_code_anchors_and_addresses_stay_as_they_are():
    code = "`[a](docs)` [b](#there) [c](https://x.org)\n\n```sh\n[d](docs)\n```\n\n"
    found = absolute_links.absolute(f"{code}[`e`](docs) [f](docs/index.md#guides)", "https://x.org/a/b/", "v1")
    assert found == (f"{code}[`e`](https://x.org/a/b/tree/v1/docs) [f](https://x.org/a/b/blob/v1/docs/index.md#guides)")


@pytest.mark.parametrize(
    ("text", "repository", "ref", "message"),
    [
        ("[a](gone.md)", "https://x.org/a/b", "v1", "gone.md, which is not there"),
        ("", "git@x.org:a/b", "v1", "Received: 'git@x.org:a/b', 'v1'"),
        ("", "https://x.org/a/b", "", "Received: 'https://x.org/a/b', ''"),
    ],
)
def test_links_that_would_lead_nowhere_are_refused(text, repository, ref, message):
    with pytest.raises(ValueError, match=message):
        absolute_links.absolute(text, repository, ref)


def test_readme_and_home_page_count_the_published_files():
    records = keras_vit.list_weights()
    files, families = len(records), len({record.family for record in records})
    assert f"{files} published files of {families} families" in (ROOT / "README.md").read_text()
    assert f"{files} published weight files" in (ROOT / "docs" / "index.md").read_text()
