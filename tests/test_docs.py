"""The Python blocks of the README and of the pages of docs run, page by page, top to bottom."""

import re
from importlib.util import find_spec
from inspect import isfunction
from operator import attrgetter
from pathlib import Path

import pytest

import pymc_dp as dp

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^(?:<!-- needs: (\w+) -->\n)?```(?:python|\{code-cell\})\n(?::[^\n]*\n)*\n?(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
EXTRAS = {"neural": ("torch", "sbi"), "opendp": ("opendp",)}
BY_DAY = ("README.md", "releases.md")  # seconds; the others take up to minutes
ELSEWHERE = ("extending.md",)  # what it registers is for a process of its own: test_extension
FOLDERS = (".", "howto", "papers", "reference")  # what the site makes or copies is tested elsewhere
PAGES = [
    pytest.param(page, marks=() if page.name in BY_DAY else pytest.mark.nightly)
    for page in [
        ROOT / "README.md",
        *sorted(p for f in FOLDERS for p in (ROOT / "docs" / f).glob("*.md")),
    ]
    if BLOCK.search(page.read_text()) and page.name not in ELSEWHERE
]


@pytest.mark.compiled
@pytest.mark.filterwarnings("default")  # the code is a user's, whose warnings are no errors
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == len(re.findall(r"^```(?:python|\{code-cell\})$", text, re.MULTILINE))

    namespace, missing = {"__name__": "__main__"}, set()
    for block in blocks:
        extra, code = block.groups()
        if extra and not all(find_spec(package) for package in EXTRAS[extra]):
            missing.add(f"needs pymc-dp[{extra}]")
            continue
        # Behind as many empty lines as the page has before it: a traceback names page and line.
        before = "\n" * text.count("\n", 0, block.start(2))
        exec(compile(before + code, str(page), "exec"), namespace)
    if missing:
        pytest.skip(", ".join(sorted(missing)) + "; the page's other blocks ran")


def test_links_lead_to_a_file():
    made = re.compile(r"(gallery/(mechanisms|steps|sums)/|speed|contributing|changelog)[\w/]*\.md")
    folders = [ROOT, ROOT / "notebooks", *(ROOT / "docs" / f for f in (*FOLDERS, "gallery/text"))]
    pages = [page for folder in folders for page in folder.glob("*.md")]
    lost = []
    for page in pages:
        for link in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text(encoding="utf-8")):
            ours = [p for p in (page.name, link) if made.search(p)]  # by the site
            if not ours and not (page.parent / link).exists():
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert not lost


def test_the_reference_lists_every_public_name():
    page = (ROOT / "docs" / "api" / "index.md").read_text()
    listed = re.findall(r"^   ([A-Za-z][\w.]*)$", page, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert all(callable(attrgetter(name)(dp)) for name in listed)
    folders = {"neural": dp.neural.__all__, "studies": dp.studies.__all__}
    functions = [name for name, item in vars(dp.thresholds).items() if isfunction(item)]
    folders["published.thresholds"] = [name for name in functions if not name.startswith("_")]
    folders["Release"] = [name for name in dir(dp.Release) if name.startswith("from_")]
    public = {f"{folder}.{name}" for folder, names in folders.items() for name in names}
    assert not {*dp.__all__, *public} - {*listed, "neural", "studies", "thresholds"}


@pytest.mark.parametrize("page", ["docs/reference/methods.md", "CONTRIBUTING.md"])
def test_modules_that_a_page_names_are_there(page):
    text = (ROOT / page).read_text()
    folders = {p.name for p in (ROOT / "pymc_dp").iterdir() if p.is_dir()}
    for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py)?)`", text):
        if name.split("/")[0] in folders and "/" in name:
            assert (ROOT / "pymc_dp" / name).exists(), name
