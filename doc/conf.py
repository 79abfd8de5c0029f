"""Sphinx configuration."""

import os
import runpy
import sys
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each of the processes that run examples

import skgpsvm

sys.path.insert(0, str(Path(__file__).parent))  # of the extension `measured`

DEVELOPMENT = Path(__file__).parent / "development"

project = "skgpsvm"
author = "skgpsvm developers"
copyright = f"2026, {author}"
release = skgpsvm.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # formulas need no network
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "measured",
    "counted",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = f"{project} {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]

math_eqref_format = "({number})"

# Types of parameters are in the docstrings, with shapes.
autodoc_typehints = "none"

# The class template lists the members; numpydoc only formats their docstrings.
numpydoc_show_class_members = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"(^|/)(?!plot_)[^/]*\.py$",
    "download_all_examples": False,
    "capture_repr": (),  # figures and printed text only
    "remove_config_comments": True,
    "thumbnail_size": (480, 336),
    "doc_module": (project,),
    "backreferences_dir": "generated/backreferences",
    "min_reported_time": 5,
    "show_memory": False,
    "write_computation_times": False,  # its page loads scripts from the network
    "parallel": 2,
}


def keep_our_members(app, what, name, obj, skip, options):
    """Leave out what scikit-learn and torch add to every class; their own pages describe it."""
    thing = obj.fget if isinstance(obj, property) else obj
    module = getattr(thing, "__module__", None)
    return skip or (module is not None and not module.startswith(project))


def draw_architecture(app):
    """Draw the pictures of the architecture page from the sources, and from fits."""
    for name in ("storeys", "path"):
        runpy.run_path(DEVELOPMENT / f"{name}.py")["draw"](DEVELOPMENT / f"{name}.png")


def setup(app):
    app.connect("builder-inited", draw_architecture)
    app.connect("autodoc-skip-member", keep_our_members)
