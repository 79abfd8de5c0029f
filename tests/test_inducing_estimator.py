"""What fits of estimators with inducing points have in common."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.gaussian_process.kernels import RBF

from skgpsvm import BayesianSVC, SVGPClassifier

X = np.random.default_rng(0).normal(size=(30, 2))
Y = np.digitize(X[:, 0], [-0.5, 0.5])


def test_fits_one_versus_rest_are_told_as_one():
    model = BayesianSVC(n_inducing=5, multi_class="ovr", random_state=0).fit(X, Y)
    assert len(model.objective_curve_) == model.n_iter_


@pytest.mark.parametrize("estimator", [BayesianSVC, SVGPClassifier])
def test_given_points_stay_where_learning_leaves_them(estimator):
    options = {"inducing_points": X[:4], "learn_inducing": False, "optimizer": None}
    model = estimator(1.0 * RBF(1.0), **options, random_state=0).fit(X, Y)
    assert_array_equal(model.inducing_points_, X[:4])
