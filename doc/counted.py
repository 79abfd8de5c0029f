"""Sphinx extension: measures of the package's structure, taken when the documentation is built.

The role ``yardstick`` is a measure of the whole package by its name in ``tests/yardsticks.py``, and
the directive ``yardsticks`` the table of the estimators, with a title as its content.
"""

import sys
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective, SphinxRole

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import yardsticks

of_package = cache(yardsticks.of_package)


class Yardstick(SphinxRole):
    """A measure of the whole package."""

    def run(self):
        """Return the measure as text."""
        try:
            return [nodes.Text(str(of_package()[self.text]))], []
        except KeyError:
            message = self.inliner.reporter.error(f"tests/yardsticks.py has no {self.text!r}.")
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]


class Yardsticks(SphinxDirective):
    """The table of the measures of each estimator."""

    has_content = True

    def run(self):
        """Return the table."""
        rows = [", ".join(map(str, line)) for line in yardsticks.of_estimators()]
        title = " ".join(self.content)
        lines = [f".. csv-table:: {title}", "   :header-rows: 1", "", *(f"   {r}" for r in rows)]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app):
    """Register role and directive."""
    app.add_role("yardstick", Yardstick())
    app.add_directive("yardsticks", Yardsticks)
    return {"parallel_read_safe": True}
