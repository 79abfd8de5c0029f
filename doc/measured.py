"""Sphinx extension: figures and tables from the results files, with the code they were measured at.

The role ``figure`` is a number, as ``benchmarks.figures.figure`` returns it; its tooltip says when
and at which commit it was measured. The directive ``measured`` is a table of
``benchmarks.tables.TABLES``, with a title as its content; a line below it says the same. Where a
paragraph or a table has figures of other code than that of the last release run, it says so.
"""

import sys
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective, SphinxRole

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import figures, tables

OLDER = "at other code than the last release run"


def when(codes):
    """Return what is known of the runs at these codes, oldest first."""
    found = figures.runs()
    return "; ".join(str(run) for code, run in found.items() if code in codes)


def is_older(codes):
    """Return whether figures are not all of the last release run."""
    return not all(figures.runs()[code].last for code in codes)


class Figure(SphinxRole):
    """A number of a results file."""

    def run(self):
        """Return the number as text with a tooltip."""
        try:
            shown, codes = figures.figure(" ".join(self.text.split()))
            told = f"measured on {when(codes)}" if codes else "of another library"
        except (LookupError, OSError) as error:
            message = self.inliner.reporter.error(f"{self.text}: {error}", line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        older = when(codes) if is_older(codes) else ""
        return [nodes.abbreviation(shown, shown, explanation=told, older=older)], []


class Measured(SphinxDirective):
    """A table of results."""

    required_arguments, final_argument_whitespace, has_content = 1, True, True

    def run(self):
        """Return the table and the line below it."""
        try:
            frame, codes = tables.TABLES[self.arguments[0]]()
        except LookupError as error:
            raise self.error(f"{self.arguments[0]}: {error}") from error
        older = f", {OLDER}" if is_older(codes) else ""
        rows = frame.to_csv(index=False).splitlines()
        title = " ".join(self.content)
        lines = [f".. csv-table:: {title}", "   :header-rows: 1", "", *(f"   {r}" for r in rows)]
        told = f"*Measured on {when(codes)}{older}.*"
        return self.parse_text_to_nodes("\n".join([*lines, "", told]))


def tell_older(app, doctree):
    """Add to each paragraph when its figures were measured, if that was before the release run."""
    told = {}
    for figure in doctree.findall(nodes.abbreviation):
        if figure.get("older"):
            told.setdefault(figure.parent, {})[figure["older"]] = None
    for paragraph, versions in told.items():
        paragraph += nodes.emphasis("", f" (measured on {'; '.join(versions)}, {OLDER})")


def setup(app):
    """Register role, directive and note."""
    app.add_role("figure", Figure())
    app.add_directive("measured", Measured)
    app.connect("doctree-read", tell_older)
    return {"parallel_read_safe": True}
