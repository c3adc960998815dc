"""Settings of the site. `python3 run.py docs` builds it into docs/_build/html."""

import os
import re
import sys
from multiprocessing import Value
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

import pymc_dp

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))  # the gallery is made by a module beside this one
os.environ.pop("MPLBACKEND", None)  # which pages that are run would take
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")  # for the pages that are run, too
# Notebooks import worked examples.
paths = str(HERE / "examples"), os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

import make_gallery  # noqa: E402

project, author = "pymc_dp", "pymc_dp developers"
copyright = f"2026, {author}"
version = release = pymc_dp.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
]
exclude_patterns = ["_build", "gallery/text"]
templates_path = ["_templates"]

# Pages with code cells are run, and what they gave is kept until their code changes.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "executed")
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_execution_excludepatterns = ["howto/simulator.md", "notebooks/06_*"]  # torch
nb_output_stderr = "remove"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections have the types
numpydoc_show_class_members = False
html_theme = "pydata_sphinx_theme"
html_title = "pymc_dp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": [], "which_page": []}
html_math_renderer = "mathml"


# Texts that lie beside this folder, and the pages that they are on the site.
BESIDE = {
    **{f"notebooks/{path.name}": f"notebooks/{path.name}" for path in ROOT.glob("notebooks/*.md")},
    "benchmarks/results.md": "speed.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def _bring(app) -> None:
    """Make the gallery, and copy what lies beside; blocks of notebooks become code cells."""
    make_gallery.make()
    for here, there in BESIDE.items():
        text = (ROOT / here).read_text()
        if here.startswith("notebooks/"):
            text = text.replace("---\njupytext:", "---\nfile_format: mystnb\njupytext:", 1)
            text = text.replace("```python\n", "```{code-cell}\n")
        target = HERE / there
        target.parent.mkdir(exist_ok=True)
        make_gallery.write(target, text)


_LEFT = Value("i", 0)  # pages that are not read: processes that read some of them share it


def _count(app, env, names: list[str]) -> None:
    _LEFT.value = len(names)


def _say(app, name: str, source: list[str]) -> None:
    """Say how many pages are left: most of the time goes to the code that they run."""
    with _LEFT.get_lock():
        _LEFT.value -= 1
        # Sphinx keeps what is logged until a process is through.
        sys.__stdout__.write(f"{name}: {_LEFT.value} pages are left\n")
        sys.__stdout__.flush()


def _relink(app, name: str, source: list[str]) -> None:
    """Let links of the files, which hold in the checkout, lead to the pages of the site."""

    def page(link: re.Match) -> str:
        path = re.sub(r"^(\.\./)+", "", link[1])
        return f"](/{BESIDE.get(path, path.removeprefix('docs/'))}{link[2] or ''})"

    known = "|".join(map(re.escape, [*BESIDE, "docs/"]))
    source[0] = re.sub(rf"\]\(((?:\.\./)*(?:{known})[^)#]*)(#[^)]*)?\)", page, source[0])


def _mathml(writer, node, before: str = "", after: str = "", **options) -> None:
    try:
        writer.body.append(before + tex2mathml(node.astext(), **options) + after)
    except MathError as error:
        logging.getLogger(__name__).warning("%s: %s", error, node.astext(), location=node)
    raise nodes.SkipNode


def _block(writer, node) -> None:
    _mathml(writer, node, '<div class="math">', "</div>", as_block=True)


def setup(app) -> None:
    """Connect all that. Formulas are MathML, which browsers show without a network."""
    app.connect("builder-inited", _bring)
    app.connect("env-before-read-docs", _count)
    app.connect("source-read", _say)
    app.connect("source-read", _relink)
    app.add_html_math_renderer("mathml", (_mathml, None), (_block, None))
