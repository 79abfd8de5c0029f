"""Figures of the documentation come from the results files, and none of a chapter is typed."""

import re
from pathlib import Path

import pytest

figures = pytest.importorskip(
    "benchmarks.figures", reason="the repository's root is not importable"
)
tables = pytest.importorskip("benchmarks.tables")
ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "doc").glob("user_guide/*.rst"))
ROLE = re.compile(r":figure:`([^`]+)`")
QUOTED = {
    " ".join(query.split()) for page in PAGES for query in ROLE.findall(page.read_text("utf-8"))
}
SHOWN = {
    name
    for page in (ROOT / "doc").glob("*/*.rst")
    for name in re.findall(r"^\.\. measured:: (\S+)", page.read_text("utf-8"), re.M)
}


@pytest.mark.parametrize("query", sorted(QUOTED))
def test_a_quoted_figure_is_in_a_results_file(query):
    shown, codes = figures.figure(query)
    assert re.fullmatch(r"-?[\d.]+( %)?", shown)
    assert codes <= set(figures.runs())


@pytest.mark.parametrize("name", sorted(tables.TABLES))
def test_a_table_has_rows_and_known_codes(name):
    table, codes = tables.TABLES[name]()
    assert len(table)
    assert codes
    assert codes <= set(figures.runs())


def test_every_table_is_quoted():
    assert set(tables.TABLES) == SHOWN


def test_a_missing_figure_is_an_error():
    with pytest.raises(LookupError, match=r"No rows of cost\.csv"):
        figures.figure("cost loss .1f rows=7; method=SVC")
    with pytest.raises(LookupError, match="No line of the report prediction"):
        figures.figure("prediction: a model of clay: 0 .1f")
    with pytest.raises(LookupError, match="No report clay"):
        figures.figure("clay: a model: 0 .1f")
    with pytest.raises(LookupError, match="neither of a results file nor of a report"):
        figures.figure("cost loss rows=7")


def test_the_newest_code_counts():
    rows = figures.Rows("regression", set="concrete", method="SVGPRegressor")
    order = list(figures.runs())
    newest = max(rows.codes(), key=order.index)
    assert rows.newest().codes() == {newest}


def test_release_runs_name_their_commit():
    runs = figures.runs().values()
    assert sum(run.last for run in runs) == 1
    assert all(re.fullmatch("[0-9a-f]{7,}", run.commit) for run in runs if run.last)


def test_older_figures_and_tables_say_so(tmp_path, monkeypatch):
    application = pytest.importorskip("sphinx.application")
    monkeypatch.syspath_prepend(ROOT / "doc")
    (new,) = (code for code, run in figures.runs().items() if run.last)
    old = next(iter(figures.runs()))
    found = {"new": ("1.5", {new}), "old": ("2.5", {old}), "both": ("3.5", {old, new})}
    frame = tables.pd.DataFrame({"model": ["``SVC``"]})
    monkeypatch.setattr(figures, "figure", found.__getitem__)
    monkeypatch.setattr(
        tables, "TABLES", {name: lambda n=name: (frame, found[n][1]) for name in found}
    )
    page = "\n\n".join(f"{n} :figure:`{n}`.\n\n.. measured:: {n}\n\n   Title" for n in found)
    (tmp_path / "index.rst").write_text(page)
    app = application.Sphinx(
        tmp_path,
        None,
        tmp_path / "out",
        tmp_path / "trees",
        "html",
        confoverrides={"extensions": ["measured"]},
        status=None,
        warning=None,
    )
    app.build()
    html = (tmp_path / "out" / "index.html").read_text("utf-8")
    paragraphs = re.findall(r"<p>(?:new|old|both) <abbr.*?</p>|<p><em>Measured.*?</p>", html)
    older = ["at other code than the last release run" in paragraph for paragraph in paragraphs]
    assert older == [False, False, True, True, True, True]
    assert all(figures.runs()[new].commit in paragraphs[i] for i in (0, 1, 4, 5))


def prose(page):
    """Return the text of a page without code, literals, mathematics and roles."""
    text = page.read_text("utf-8")
    text = re.sub(r"^( *)\.\. (code-block|math)::.*\n((\1 +.*)?\n)+", "\n", text, flags=re.M)
    text = re.sub(r"^>>>.*|^\.\.\. .*", "", text, flags=re.M)
    return re.sub(r"``.*?``|:[\w.:]+:`[^`]*`", "x", text, flags=re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_time_and_no_table_of_decimals_is_typed(page):
    """Times are always measured, and so is a table cell that is nothing but a decimal number."""
    text = prose(page)
    cell = r"^ +(?:\* )?- [-.\d]*\.\d\d+(?: %)?$|^\w.*  +0?\.\d\d+$"
    time = r"\d (?:m?s|seconds|minutes|hours)\b"
    assert not re.findall(f".*(?:{cell}).*|.*{time}.*", text, re.M)


def test_readme_quotes_the_results_file():
    """README.rst is also read without Sphinx, so that its figures are typed and compared here."""

    def result(column, form, name, model="SVGPRegressor"):
        return figures.figure(f"first_screen {column} {form} result={name}; model={model}")[0]

    losses = [
        result("log_loss", ".3f", "mixed table", model)
        for model in ("AdditiveGPClassifier", "boosted trees", "SVC, calibrated")
    ]
    quoted = [
        f"log loss on new rows is {losses[0]}. Boosted trees have {losses[1]}",
        f"``SVC`` has {losses[2]}",
        f"take {result('seconds', '.0f', 'in memory')} seconds",
        f"{result('inside', '.0%', 'in memory')} are inside",
        f"square error is {result('error', '.2f', 'in memory')}",
        f"takes {result('mib', '.0f', 'on disk')} MiB of memory and "
        f"{result('seconds', '.0f', 'on disk')} seconds",
    ]
    text = " ".join((ROOT / "README.rst").read_text(encoding="utf-8").split())
    assert not [words for words in quoted if words not in text]
