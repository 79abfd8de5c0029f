"""What `make demo` runs: a Bayesian support vector machine on scanned digits, from start to end.

Tunes a pipeline by grid search, compares it with scikit-learn's support vector machine, checks its
probabilities and lets it choose which digits are labelled. Prints tables, draws two pictures.
"""

import time
from pathlib import Path

import matplotlib
import numpy as np
from joblib import Parallel, delayed, parallel_config
from sklearn.calibration import CalibratedClassifierCV
from sklearn.callback import ProgressBar
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skgpsvm import BayesianSVC
from skgpsvm.active_learning import mean_softmax_entropy, variation_ratio

FOLDER = Path(__file__).resolve().parents[1] / "build" / "demo"

KERNELS = {
    "one length scale a pixel": None,  # the default
    "Matern 3/2, one for all": 5.0 * Matern(8.0, nu=1.5) + ConstantKernel(5.0, "fixed"),
}
CONFIDENCE = np.array([0.0, 0.5, 0.7, 0.9, 0.97, 1.0])

POLICIES = {
    "variation ratio": variation_ratio,
    "entropy of softmax of means": mean_softmax_entropy,
    "at random": None,
}
# Colours that the colour-blind can tell apart (Okabe and Ito), and markers for print.
STYLES = dict(
    zip(
        [*POLICIES, "BayesianSVC, tuned", "SVC, calibrated"],
        [("#0072B2", "o"), ("#D55E00", "s"), ("#555555", "^"), ("#0072B2", "o"), ("#D55E00", "s")],
        strict=True,
    )
)
QUERIES_A_ROUND, ROUNDS, REPEATS = 10, 12, 2


def heading(text):
    """Print the title of a part."""
    print(f"\n{text}\n{'-' * len(text)}")


def table(columns, rows):
    """Print rows of text under their columns: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in [columns, *rows]:
        cells = [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "   ".join([row[0].ljust(widths[0]), *cells]))


def search(X, y):
    """The pipeline tuned by grid search over kernel and number of inducing points."""
    pipeline = make_pipeline(StandardScaler(), BayesianSVC(random_state=0))
    grid = {
        "bayesiansvc__kernel": list(KERNELS.values()),
        "bayesiansvc__n_inducing": [64, 128],
    }
    tuned = GridSearchCV(
        pipeline, grid, scoring=["neg_log_loss", "accuracy"], refit="neg_log_loss", cv=3
    )
    return tuned.set_callbacks(ProgressBar()).fit(X, y)


def report_search(tuned):
    """Table of the candidates, the best first."""
    results = tuned.cv_results_
    names = {str(kernel): name for name, kernel in KERNELS.items()}
    rows = []
    for i in np.argsort(results["rank_test_neg_log_loss"]):
        rows.append(
            [
                names[str(results["param_bayesiansvc__kernel"][i])],
                str(results["param_bayesiansvc__n_inducing"][i]),
                f"{-results['mean_test_neg_log_loss'][i]:.3f}",
                f"{results['mean_test_accuracy'][i]:.3f}",
                f"{results['mean_fit_time'][i]:.1f}",
            ]
        )
    table(["kernel", "inducing points", "log-loss", "accuracy", "fit, s"], rows)


def report_test(models, X, y):
    """Table of accuracy, log-loss and mean confidence; the probabilities by model."""
    rows, probabilities = [], {}
    for name, model in models.items():
        row = [name, f"{model.score(X, y):.3f}", "none", "none"]
        if hasattr(model, "predict_proba"):
            p = probabilities[name] = model.predict_proba(X)
            row[2:] = [f"{log_loss(y, p):.3f}", f"{p.max(axis=1).mean():.3f}"]
        rows.append(row)
    table(["", "accuracy", "log-loss", "accuracy it expects"], rows)
    return probabilities


def reliability(p, y):
    """Rows, expected and observed accuracy in each bin of confidence."""
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    bins = np.digitize(confidence, CONFIDENCE[1:-1])
    found = []
    for i in range(len(CONFIDENCE) - 1):
        chosen = bins == i
        n = np.count_nonzero(chosen)
        found.append((n, confidence[chosen].mean(), right[chosen].mean()) if n else (0, None, None))
    return found


def report_reliability(curves):
    """Table of expected and observed accuracy by confidence."""
    rows = []
    for i, (low, high) in enumerate(zip(CONFIDENCE[:-1], CONFIDENCE[1:], strict=True)):
        row = [f"{low:.2f} to {high:.2f}"]
        for curve in curves.values():
            n, expected, observed = curve[i]
            row += [str(n), *(f"{part:.2f}" if n else "-" for part in (expected, observed))]
        rows.append(row)
    print("  " + " " * 12 + "".join(f"{name:>31}" for name in curves))
    table(["confidence", *["digits", "expected", "observed"] * len(curves)], rows)


def draw_reliability(curves, path):
    """Expected against observed accuracy."""
    figure = matplotlib.figure.Figure(figsize=(5, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.plot([0.3, 1], [0.3, 1], color="0.6", linestyle=":", label="as often right as it says")
    for name, curve in curves.items():
        _, expected, observed = zip(*[point for point in curve if point[0] >= 5], strict=True)
        color, marker = STYLES[name]
        axes.plot(expected, observed, color=color, marker=marker, label=name)
    axes.set(
        xlabel="confidence: mean probability of the predicted digit",
        ylabel="observed accuracy",
        title="Test digits, grouped by confidence",
    )
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def learn_actively(score, seed, X, y):
    """Test errors as rounds of queries, chosen by a score or at random, are labelled."""
    X_pool, X_test, y_pool, y_test = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=seed
    )
    scaler = StandardScaler().fit(X_pool)
    X_pool, X_test = scaler.transform(X_pool), scaler.transform(X_test)
    rng = np.random.default_rng(seed)
    labelled = [rng.choice(np.flatnonzero(y_pool == digit)) for digit in np.unique(y)]
    model = BayesianSVC(optimizer=None, random_state=0)  # too few labels to learn a kernel from
    errors = []
    for _ in range(ROUNDS + 1):
        model.fit(X_pool[labelled], y_pool[labelled])
        errors.append(1 - model.score(X_test, y_test))
        others = np.delete(np.arange(len(y_pool)), labelled)
        scores = score(model, X_pool[others]) if score else rng.random(len(others))
        labelled += others[scores.argsort()[::-1][:QUERIES_A_ROUND]].tolist()
    return errors


def active_learning(X, y):
    """Mean test error along the queries of each policy."""
    tasks = [(policy, seed) for policy in POLICIES for seed in range(REPEATS)]
    errors = Parallel()(delayed(learn_actively)(POLICIES[p], seed, X, y) for p, seed in tasks)
    errors = np.reshape(errors, (len(POLICIES), REPEATS, ROUNDS + 1)).mean(axis=1)
    return dict(zip(POLICIES, errors, strict=True))


def report_active_learning(n_labels, errors):
    """Table of test errors by number of labels."""
    rows = [
        [str(n), *(f"{error[i]:.1%}" for error in errors.values())]
        for i, n in enumerate(n_labels)
        if i % 2 == 0
    ]
    table(["labels", *errors], rows)


def draw_active_learning(n_labels, errors, path):
    """Test error against labels."""
    figure = matplotlib.figure.Figure(figsize=(5.6, 4), layout="constrained")
    axes = figure.subplots()
    for policy, error in errors.items():
        color, marker = STYLES[policy]
        axes.plot(n_labels, 100 * error, color=color, marker=marker, label=policy)
    axes.set(
        xlabel="labelled digits", ylabel="test error, %", title="Which digits to label?", ylim=0
    )
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main():
    """Run all parts."""
    began = time.perf_counter()
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=0
    )
    print(f"{len(y)} scanned digits of 8 x 8 pixels: {len(y_train)} to learn, {len(y_test)} to test.")

    heading("1. Pipeline(StandardScaler, BayesianSVC) tuned by GridSearchCV")
    tuned = search(X_train, y_train)
    print("Mean over 3 folds, best log-loss first. Each fit learns its kernel's values by itself.\n")
    report_search(tuned)

    heading("2. On the test digits")
    svc = make_pipeline(StandardScaler(), SVC())
    calibrated = CalibratedClassifierCV(svc, method="temperature", ensemble=False)
    models = {
        "BayesianSVC, tuned": tuned,
        "SVC, default": svc.fit(X_train, y_train),
        "SVC, calibrated": calibrated.fit(X_train, y_train),
    }
    print("Log-loss in nats, lower is better; SVC has probabilities only by cross-validation.\n")
    probabilities = report_test(models, X_test, y_test)

    heading("3. Is it right as often as it says?")
    print("Test digits by the probability of the predicted digit; expected and observed accuracy.\n")
    curves = {name: reliability(p, y_test) for name, p in probabilities.items()}
    report_reliability(curves)

    heading("4. Active learning: the model chooses which digits are labelled")
    print(f"Test error as {QUERIES_A_ROUND} labels a round are asked for; mean of {REPEATS} runs.\n")
    errors = active_learning(X, y)
    n_labels = 10 + QUERIES_A_ROUND * np.arange(ROUNDS + 1)
    report_active_learning(n_labels, errors)

    FOLDER.mkdir(parents=True, exist_ok=True)
    draw_reliability(curves, FOLDER / "calibration.png")
    draw_active_learning(n_labels, errors, FOLDER / "active_learning.png")
    print(f"\nDone in {time.perf_counter() - began:.0f} s. Pictures are in {FOLDER}:")
    print("\n".join(f"  {path.name}" for path in sorted(FOLDER.glob("*.png"))))


if __name__ == "__main__":
    with parallel_config("loky", n_jobs=2, inner_max_num_threads=1):
        main()
