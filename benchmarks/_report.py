"""Text reports: headed by date and versions, tables, mean ranks, comparisons of pairs."""

import os
import platform
from datetime import date

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy
import sklearn
import torch
from matplotlib.ticker import NullFormatter

from . import _measure
from ._harness import RESULTS, package_code

_PANELS = 4  # in a row


def header(title, **settings):
    """First lines of a report: what it is, and what it was run with."""
    versions = (
        f"{package_code()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"scikit-learn {sklearn.__version__}, scipy {scipy.__version__}, numpy {np.__version__}"
    )
    lines = [title, "=" * len(title), f"{date.today()}, {os.cpu_count()} CPUs", versions]
    return "\n".join(lines + [f"{name}: {value}" for name, value in settings.items()])


def publish(name, parts, *, write):
    """Print a report and, where ``write``, save it as results/<name>-<date>.txt.

    Empty parts are left out.
    """
    text = "\n\n".join(filter(None, parts)) + "\n"
    print(text)
    if write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}-{date.today()}.txt").write_text(text)


def table(frame, title="", digits=3):
    """A data frame as aligned text; floats get ``digits`` decimals, those missing a dash."""
    text = frame.to_string(
        index=False, na_rep="-", float_format=lambda value: f"{value:.{digits}f}"
    )
    return f"{title}\n{text}" if title else text


def ranks(scores, *, higher_is_better):
    """Rank of every column within each row, 1 the best; ties share their mean rank.

    Missing scores are the worst; differences below 1e-9 are rounding, and ties.
    """
    return scores.round(9).rank(axis=1, ascending=not higher_is_better, na_option="bottom")


def comparison(scores, ours, *, higher_is_better):
    """One column against each of the others, over the sets that both have: ranks, wins, ties."""
    rows = []
    for other in scores.columns.drop(ours):
        pair = scores[[ours, other]].dropna()
        mean = ranks(pair, higher_is_better=higher_is_better).mean()
        ahead = ranks(pair, higher_is_better=higher_is_better)[ours]
        rows.append(
            {
                "against": other,
                "rank": mean[ours],
                "its rank": mean[other],
                "wins": (ahead == 1).sum(),
                "ties": (ahead == 1.5).sum(),
                "losses": (ahead == 2).sum(),
                "mean difference": (pair[ours] - pair[other]).mean(),
            }
        )
    return pd.DataFrame(rows)


def failures(results, keys=("set", "seed", "method")):
    """Return a line for each task that failed, named by its ``keys``, or that none did."""
    failed = results[results["error"] != ""]
    lines = [
        f"  {' '.join(str(row[key]) for key in keys)}: {row['error']}"
        for _, row in failed.iterrows()
    ]
    return "\n".join(["FAILED:", *lines]) if lines else "No fit failed."


def other_code(results, codes):
    """The methods of which results are of other code than what would be run now, as text.

    ``codes`` are the versions by name.
    """
    versions = results.groupby("method")["code"].unique()
    lines = [
        f"  {name}: {', '.join(versions[name])}"
        for name, code in codes.items()
        if name in versions and set(versions[name]) != {code}
    ]
    return "\n".join(["Results of other code:", *lines]) if lines else ""


def methods(results, sizes, methods, metrics, ours):
    """Parts of a report on methods over sets: pairs with ours first, then every set.

    Parameters
    ----------
    results : DataFrame
        Of `run_methods`.
    sizes : DataFrame
        What is told of each set; its index is the order of the sets.
    methods : dict of Method
    metrics : dict
        Name: whether higher is better, and a title.
    ours : str
        The method that the others are compared with.
    """
    measured = [*metrics, "fit_seconds", "peak_mib"]
    if ours not in set(results["method"]):
        raise SystemExit(f"No results of {ours!r}, which others are compared with: run it too.")
    methods = {name: m for name, m in methods.items() if name in set(results["method"])}
    means = results.groupby(["set", "method"])[measured].mean().unstack().reindex(sizes.index)
    codes = {name: method.code for name, method in methods.items()}
    parts, tables = [failures(results), other_code(results, codes)], []
    for metric, (higher, title) in metrics.items():
        scores = means[metric][[m for m in methods if metric in methods[m].metrics]]
        verdicts = comparison(scores, ours, higher_is_better=higher)
        parts.append(table(verdicts, f"{title}: {ours} against others, over sets"))
        mean_ranks = ranks(scores, higher_is_better=higher).mean()
        footer = pd.DataFrame([scores.mean(), mean_ranks], index=["mean", "mean rank"])
        tables.append(table(_with_sizes(sizes, scores, footer), title))
    seconds = means["fit_seconds"][list(methods)]
    footer = seconds.sum().to_frame("sum").T
    title = "Seconds of processor time to fit, one thread"
    tables.append(table(_with_sizes(sizes, seconds, footer), title, digits=2))
    memory = means["peak_mib"][list(methods)]
    footer = memory.max().to_frame("largest").T
    title = "Peak memory above that before the fit, MiB"
    tables.append(table(_with_sizes(sizes, memory, footer), title, digits=0))
    warned = results[results["warnings"] != ""]
    counts = warned.groupby(["method", "warnings"]).size().rename("fits").reset_index()
    parts.append(table(counts, "Fits that warned") if len(counts) else "No fit warned.")
    return parts + tables


def against_time(results, sizes, quality, ours, peer):
    """Parts of a report on the time that methods take to the final loss of a peer.

    Of the fits that were watched, those of seed 0; a method that never gets there counts as
    infinitely slower.

    Parameters
    ----------
    results, sizes
        As of `methods`.
    quality : str
        What the loss is of.
    ours : sequence of str
    peer : str
    """
    curves = results[results["seed"] == 0].pivot(index="set", columns="method", values="curve")
    curves = curves[[*ours, peer]].dropna().reindex(sizes.index).dropna()
    watched = curves[[len(_measure.curve(text)[0]) > 1 for text in curves[peer]]]
    if not len(watched):
        return []
    rows = {}
    for name, texts in watched.iterrows():
        target = _measure.curve(texts[peer])[1][-1]
        taken = {method: _measure.time_to(texts[method], target) for method in (peer, *ours)}
        ratios = {f"ratio, {method}": taken[peer] / taken[method] for method in ours}
        rows[name] = {"final loss": target, **{f"{m} s": t for m, t in taken.items()}, **ratios}
    found = pd.DataFrame(rows).T
    medians = found[[f"ratio, {method}" for method in ours]].median()
    title = (
        f"Processor seconds to the final {quality} on test rows of {peer}, one thread, first split"
    )
    sizes = sizes.loc[found.index]
    return [table(_with_sizes(sizes, found, medians.to_frame("median").T), title, digits=2)]


def draw_curves(results, methods, quality, path):
    """Draw the loss on test rows against time, a panel for each set where fits were watched.

    Parameters
    ----------
    results : DataFrame
        Of `run_methods`; the fits of seed 0 are drawn.
    methods : sequence of str
    quality : str
        What the loss is of.
    path : Path
    """
    found = results[(results["seed"] == 0) & results["method"].isin(methods)]
    curves = found.pivot(index="set", columns="method", values="curve").fillna("")
    curves = curves[curves.map(lambda text: text.count(":")).max(axis=1) > 1]
    n_rows = -(-len(curves) // _PANELS)
    figure, axes = plt.subplots(
        n_rows, _PANELS, figsize=(11, 2.3 * n_rows), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(curves) :]:
        axis.remove()
    for axis, (name, texts) in zip(axes.flat, curves.iterrows(), strict=False):
        shown = {method: _measure.curve(texts[method]) for method in methods if texts[method]}
        for method, (taken, loss) in shown.items():
            axis.plot(taken, loss, "o-", ms=2.5, lw=1.2, label=method)
        best = min(loss.min() for _, loss in shown.values())
        worst = max(loss[-1] for _, loss in shown.values())
        room = worst - best + 1e-3
        axis.set(xscale="log", title=name, ylim=(best - 0.15 * room, worst + 0.7 * room))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=7)
    figure.supxlabel("processor seconds, one thread", fontsize=9)
    figure.supylabel(f"{quality} on test rows", fontsize=9)
    figure.savefig(path, dpi=120)


def watched(results, title, peer):
    """Parts of a report on methods on one set whose log-loss was watched.

    Parameters
    ----------
    results : DataFrame
        Of `run_tasks` with error rate and log-loss.
    title : str
        What the test rows are.
    peer : str
        The method whose final log-loss the others' times are to.
    """
    shown = results[["method", "error_rate", "log_loss", "fit_seconds", "peak_mib"]]
    parts = [failures(results), table(shown, f"{title}; processor seconds to fit", digits=4)]
    if (results["error"] != "").any():
        return parts
    texts = results.set_index("method")["curve"]
    final = _measure.curve(texts[peer])[1][-1]
    times = {name: _measure.time_to(text, final) for name, text in texts.items()}
    frame = pd.DataFrame(times.items(), columns=["method", "seconds"])
    frame["ratio"] = times[peer] / frame["seconds"]
    parts.append(table(frame, f"Seconds to the final log-loss of {peer}", digits=1))
    curves = [f"{name}: {text}" for name, text in texts.items()]
    return [*parts, "\n".join(["Seconds:log-loss where it fell", *curves])]


def _with_sizes(sizes, scores, footer):
    body = pd.concat([pd.concat([sizes, scores], axis=1), footer])
    body = body.rename_axis("set").reset_index()
    body[sizes.columns] = body[sizes.columns].astype("Int64")
    return body
