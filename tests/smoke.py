"""Fit, save and load every estimator of an installed package: ``make dist`` runs it on the wheel.

It needs none of the extras, and no file of the repository: run ``python -I smoke.py`` anywhere.
"""

import pickle
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn.base import is_classifier
from sklearn.datasets import load_diabetes, load_iris

import skgpsvm

EXTRAS = ["matplotlib", "pyarrow", "safetensors", "pandas"]


def main():
    """Print one line for each estimator."""
    print(f"skgpsvm {skgpsvm.__version__} in {Path(skgpsvm.__file__).parent}")
    assert (Path(skgpsvm.__file__).parent / "py.typed").is_file()
    print("extras:", ", ".join(filter(find_spec, EXTRAS)) or "none")
    for name in skgpsvm.__all__:
        if name.startswith("_"):
            continue
        model = getattr(skgpsvm, name)(max_iter=5, random_state=0)
        X, y = (load_iris if is_classifier(model) else load_diabetes)(return_X_y=True)
        X, y = X[::3] / X.std(0), y[::3]
        with warnings.catch_warnings(action="ignore"):  # five iterations are too few
            model.fit(X, y)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert model.score(X, y) > 0.4, (name, model.score(X, y))
        print(f"{name:24} {model.score(X, y):.2f}")


if __name__ == "__main__":
    main()
