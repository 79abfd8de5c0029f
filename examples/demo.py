"""Fit a Bayesian support vector machine to scanned digits, from start to end; for `make demo`.

The demo tunes a pipeline by grid search, compares it with scikit-learn's support vector machine,
checks its probabilities, and lets it choose which digits are labeled. It prints tables and draws
two pictures.
"""

import time
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed, parallel_config
from matplotlib.figure import Figure
from sklearn.calibration import CalibratedClassifierCV
from sklearn.callback import ProgressBar
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from skgpsvm import BayesianSVC
from skgpsvm.active_learning import diverse_sampling, least_confident_sampling

FOLDER = Path(__file__).resolve().parents[1] / "build" / "demo"

ONE_LENGTH_SCALE = 5.0 * RBF(25.0) + ConstantKernel(5.0, "fixed")
CHOICES = {  # scaler and kernel; None is the default, with a length scale per pixel
    "standardized, a length scale each": (StandardScaler(), None),
    "as they are, one length scale": ("passthrough", ONE_LENGTH_SCALE),
}
POLICIES = {
    "unsure and diverse": diverse_sampling,
    "least confident": least_confident_sampling,
    "at random": None,
}
# Colors that color-blind readers can distinguish (Okabe and Ito), and markers for print.
STYLES = {
    "BayesianSVC, tuned": {"color": "#0072B2", "marker": "o"},
    "SVC, calibrated": {"color": "#D55E00", "marker": "s"},
    "unsure and diverse": {"color": "#0072B2", "marker": "o"},
    "least confident": {"color": "#D55E00", "marker": "s"},
    "at random": {"color": "#555555", "marker": "^"},
}
N_GROUPS = 6
ROUNDS, QUERIES_A_ROUND, REPEATS = 12, 10, 2


def heading(title, *explained):
    """Print the title of a part and an explanation of its table."""
    print(f"\n{title}\n{'-' * len(title)}")
    print("\n".join(explained), end="\n\n", flush=True)


def table(columns, rows):
    """Print a table of text; the first column is aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in [columns, *rows]:
        cells = [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "   ".join([row[0].ljust(widths[0]), *cells]))


def tune(X, y):
    """Part 1: tune the scaler, the kernel and the number of inducing points of a pipeline."""
    heading(
        "1. A pipeline of a scaler and BayesianSVC, tuned by GridSearchCV",
        "Means over 3 folds, sorted by log loss (nats, lower is better).",
        "Each fit also learns the hyperparameters of its kernel, which need no grid.",
    )
    pipeline = Pipeline([("scaler", StandardScaler()), ("svc", BayesianSVC(random_state=0))])
    grid = [
        {"scaler": [scaler], "svc__kernel": [kernel], "svc__n_inducing": [32, 96]}
        for scaler, kernel in CHOICES.values()
    ]
    search = GridSearchCV(
        pipeline,
        grid,
        scoring=["neg_log_loss", "accuracy"],
        refit="neg_log_loss",
        cv=3,
        n_jobs=2,
    )
    search.set_callbacks(ProgressBar(max_propagation_depth=0)).fit(X, y)
    print()

    results = search.cv_results_
    names = {str(scaler): name for name, (scaler, _) in CHOICES.items()}
    rows = [
        [
            names[str(results["param_scaler"][i])],
            str(results["param_svc__n_inducing"][i]),
            f"{-results['mean_test_neg_log_loss'][i]:.3f}",
            f"{results['mean_test_accuracy'][i]:.3f}",
            f"{results['mean_fit_time'][i]:.1f}",
        ]
        for i in np.argsort(results["rank_test_neg_log_loss"])
    ]
    table(["pixels", "inducing points", "log loss", "accuracy", "fit, s"], rows)
    return search


def compare(models, X, y):
    """Part 2: compare models on the test rows, and return their class probabilities."""
    heading(
        "2. On the test digits",
        "Expected accuracy: the mean probability of the predicted digit.",
        "The probabilities of SVC need cross-validation, here with temperature scaling.",
    )
    rows, probabilities = [], {}
    for name, model in models.items():
        row = [name, f"{accuracy_score(y, model.predict(X)):.3f}", "-", "-"]
        if hasattr(model, "predict_proba"):
            p = probabilities[name] = model.predict_proba(X)
            row[2:] = [f"{p.max(axis=1).mean():.3f}", f"{log_loss(y, p):.3f}"]
        rows.append(row)
    table(["model", "accuracy", "expected", "log loss"], rows)
    return probabilities


def check_calibration(probabilities, y, path):
    """Part 3: compare expected and observed accuracy in groups of similar confidence."""
    heading(
        "3. Are the predictions right as often as expected?",
        f"Test digits in {N_GROUPS} equal groups, from the least to the most confident:",
        "the accuracy expected from the probabilities, and the observed accuracy.",
    )
    curves = {}
    for name, p in probabilities.items():
        groups = np.array_split(p.max(axis=1).argsort(), N_GROUPS)
        right = p.argmax(axis=1) == y
        curves[name] = [(p[group].max(axis=1).mean(), right[group].mean()) for group in groups]
    for name, curve in curves.items():
        expected, observed = zip(*curve, strict=True)
        rows = [
            ["expected", *(f"{value:.3f}" for value in expected)],
            ["observed", *(f"{value:.3f}" for value in observed)],
        ]
        table([name.ljust(18), *(str(i + 1) for i in range(N_GROUPS))], rows)

    figure = Figure(figsize=(5, 4.6), layout="constrained")
    axes = figure.subplots()
    low = min(min(map(min, curve)) for curve in curves.values()) - 0.05
    axes.plot([low, 1], [low, 1], color="0.6", linestyle=":", label="right as often as expected")
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=name, **STYLES[name])
    axes.set(
        title="Test digits, in groups of equal size",
        xlabel="expected accuracy (probability of the predicted digit)",
        ylabel="observed accuracy",
    )
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def errors_along(query, seed, X, y):
    """Return the test error after each round of queries, or of random draws for None."""
    X_pool, X_test, y_pool, y_test = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=seed
    )
    scaler = StandardScaler().fit(X_pool)
    X_pool, X_test = scaler.transform(X_pool), scaler.transform(X_test)
    rng = np.random.default_rng(seed)
    labeled = []
    for digit in np.unique(y):
        labeled += rng.choice(np.flatnonzero(y_pool == digit), 2, replace=False).tolist()
    # There are few labels, so the kernel is not learned, and a rough solution is enough.
    model = BayesianSVC(optimizer=None, tol=0.1, random_state=0)
    errors = []
    for _ in range(ROUNDS + 1):
        model.fit(X_pool[labeled], y_pool[labeled])
        errors.append(1 - model.score(X_test, y_test))
        others = np.delete(np.arange(len(y_pool)), labeled)
        if query is None:
            chosen = rng.permutation(len(others))[:QUERIES_A_ROUND]
        else:
            chosen, _ = query(
                model, X_pool[others], QUERIES_A_ROUND, random_state=rng.integers(1000)
            )
        labeled += others[chosen].tolist()
    return errors


def learn_actively(X, y, path):
    """Part 4: show the test error by number of labels, for each query policy."""
    heading(
        "4. Active learning: the model chooses which digits are labeled",
        f"Test error, starting from 2 labels per class, {QUERIES_A_ROUND} queries per round; "
        f"mean of {REPEATS} runs.",
        "Least confident: the digits with the smallest probability of the predicted class.",
        "Unsure and diverse: digits about which the model is unsure, and that differ.",
    )
    tasks = [(query, seed) for query in POLICIES.values() for seed in range(REPEATS)]
    errors = Parallel(n_jobs=2)(delayed(errors_along)(*task, X, y) for task in tasks)
    errors = np.reshape(errors, (len(POLICIES), REPEATS, -1)).mean(axis=1)
    n_labels = 2 * len(np.unique(y)) + QUERIES_A_ROUND * np.arange(ROUNDS + 1)
    rows = [
        [f"{n} labels", *(f"{error:.1%}" for error in errors[:, i])]
        for i, n in enumerate(n_labels)
        if i % 2 == 0
    ]
    table(["", *POLICIES], rows)

    figure = Figure(figsize=(5.6, 4), layout="constrained")
    axes = figure.subplots()
    for name, error in zip(POLICIES, errors, strict=True):
        axes.plot(n_labels, 100 * error, label=name, **STYLES[name])
    axes.set(title="Which digits to label?", xlabel="labels", ylabel="test error, %")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main():
    """Run all parts."""
    began = time.perf_counter()
    FOLDER.mkdir(parents=True, exist_ok=True)
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=0
    )
    print(f"{len(y)} scanned digits of 8 x 8 pixels: half for training, half for testing.")

    search = tune(X_train, y_train)
    svc = SVC()
    calibrated = CalibratedClassifierCV(svc, method="temperature", ensemble=False)
    models = {
        "BayesianSVC, tuned": search,
        "SVC": svc.fit(X_train, y_train),
        "SVC, calibrated": calibrated.fit(X_train, y_train),
    }
    probabilities = compare(models, X_test, y_test)
    check_calibration(probabilities, y_test, FOLDER / "calibration.png")
    learn_actively(X, y, FOLDER / "active_learning.png")

    print(f"\nDone in {time.perf_counter() - began:.0f} s. Pictures are in {FOLDER}:")
    print("\n".join(f"  {path.name}" for path in sorted(FOLDER.glob("*.png"))))


if __name__ == "__main__":
    # One thread for each process: more threads would compete for the cores.
    with threadpool_limits(1), parallel_config("loky", inner_max_num_threads=1):
        main()
