"""Environment variables, hypothesis profile, markers and fixtures that all tests share."""

import os
from pathlib import Path

# scikit-learn skips its array-API checks unless this is set before SciPy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# On small tensors a second thread costs more time than it saves.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch
from problems import HINGES

# Hypothesis' own "ci" profile: the same examples in every run, no deadline, no database.
hypothesis.settings.load_profile("ci")


def pytest_collection_modifyitems(items):
    """Skip tests marked `cuda` if torch finds no CUDA device."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="torch sees no CUDA device")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)


@pytest.fixture(params=HINGES)
def hinge(request):
    """Return the sites of each hinge of the Bayesian SVM."""
    return HINGES[request.param]()


@pytest.fixture(scope="session")
def benchmark_data():
    """Return the folder of the benchmark data sets: SKGPSVM_DATA, or ../shared/data by default."""
    beside_checkout = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SKGPSVM_DATA", beside_checkout))
    if not folder.is_dir():
        pytest.skip(f"no benchmark data in {folder}; set SKGPSVM_DATA to the folder that has them")
    return folder
