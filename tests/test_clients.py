"""Other libraries and the estimators; tests of a library are skipped where it is missing."""

import every_estimator
import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.datasets import load_iris, make_friedman1
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import all_estimators

from skgpsvm import BayesianSVC, SVGPRegressor
from skgpsvm.active_learning import DiverseQueryStrategy, ScoreQueryStrategy

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def iris():
    """Return points and their labels, most of which are missing."""
    X, labels = load_iris(return_X_y=True)
    y = np.full(len(X), np.nan)
    y[::10] = labels[::10]
    return X, y


def quick():
    return BayesianSVC(n_inducing=16, optimizer=None, random_state=0)


# scikit-activeml


@pytest.mark.parametrize("kind", [ScoreQueryStrategy, DiverseQueryStrategy])
def test_query_strategies_in_a_wrapper_of_scikit_activeml(iris, kind):
    pool = pytest.importorskip("skactiveml.pool")
    base = pytest.importorskip("skactiveml.base")
    base.SingleAnnotatorPoolQueryStrategy.register(kind)
    wrapper = pool.SubSamplingWrapper(kind(random_state=0), max_candidates=30, random_state=0)
    chosen = wrapper.query(*iris, clf=quick(), batch_size=4)
    assert len(set(chosen)) == 4
    assert np.isnan(iris[1][chosen]).all()


def test_uncertainty_sampling_of_scikit_activeml_is_ours(iris):
    pool = pytest.importorskip("skactiveml.pool")
    classifier = pytest.importorskip("skactiveml.classifier")
    model = classifier.SklearnClassifier(quick(), classes=[0, 1, 2])
    theirs = pool.UncertaintySampling(random_state=0).query(*iris, model, batch_size=3)
    assert_array_equal(ScoreQueryStrategy().query(*iris, model, batch_size=3), theirs)


def test_a_committee_of_draws(iris):
    pool = pytest.importorskip("skactiveml.pool")
    classifier = pytest.importorskip("skactiveml.classifier")
    model = classifier.SklearnClassifier(quick(), classes=[0, 1, 2])
    committee = pool.QueryByCommittee(
        random_state=0,
        sample_predictions_method_name="sample_proba",
        sample_predictions_dict={"n_samples": 20},
    )
    assert np.isnan(iris[1][committee.query(*iris, model)]).all()


# Others


@pytest.mark.parametrize("name", every_estimator.ESTIMATORS)
def test_a_fit_has_no_fits_of_scikit_learn_inside(name, monkeypatch):
    # Automatic logging, such as MLflow's, replaces these methods, and logs an inner fit as a model.
    def inner(estimator, *_, **__):
        pytest.fail(f"The fit has one of {type(estimator).__name__} inside.")

    for _, kind in all_estimators():
        for method in ("fit", "fit_transform", "fit_predict"):
            if method in vars(kind):
                monkeypatch.setattr(kind, method, inner)
    every_estimator.fitted(name)


def test_mapie_of_a_regressor_and_a_classifier():
    regression = pytest.importorskip("mapie.regression")
    classification = pytest.importorskip("mapie.classification")
    X, y = make_friedman1(150, random_state=0)
    model = regression.CrossConformalRegressor(
        SVGPRegressor(n_inducing=20, random_state=0), confidence_level=0.9, cv=3
    )
    _, interval = model.fit_conformalize(X, y).predict_interval(X)
    assert np.mean((interval[:, 0, 0] <= y) & (y <= interval[:, 1, 0])) > 0.85

    X, y = load_iris(return_X_y=True)
    model = classification.SplitConformalClassifier(
        quick().fit(X[::2], y[::2]), confidence_level=0.9, prefit=True
    )
    _, sets = model.conformalize(X[1::2], y[1::2]).predict_set(X)
    assert sets[np.arange(150), y, 0].mean() > 0.85


def test_optuna_searches_parameters():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    X, y = load_iris(return_X_y=True)

    def loss(trial):
        model = quick().set_params(n_inducing=trial.suggest_int("n_inducing", 2, 20))
        return -cross_val_score(model, X, y, cv=3, scoring="neg_log_loss").mean()

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(loss, n_trials=3)
    assert study.best_value < 0.3


class Pruning:
    """Callback that reports the score of the model so far to a trial, which may prune it."""

    def __init__(self, trial, X, y):
        self.trial, self.rows, self.n_reports = trial, (X, y), 0

    def setup(self, estimator, context):
        pass

    teardown = on_fit_task_begin = setup

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        import optuna

        if context.task_name == "iteration" and fitted_estimator is not None:
            self.trial.report(fitted_estimator.score(*self.rows), self.n_reports)
            self.n_reports += 1
            if self.trial.should_prune():
                raise optuna.TrialPruned


def test_optuna_prunes_a_fit_by_the_model_so_far():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    X, y = make_friedman1(60, random_state=0)
    models = []

    def score(trial):
        models.append(SVGPRegressor(n_inducing=trial.suggest_int("n", 5, 10), random_state=0))
        models[-1].set_callbacks(Pruning(trial, X, y)).fit(X, y)
        return models[-1].score(X, y)

    # No score is above 2, and none below -2.
    for lower, state in ((2.0, "PRUNED"), (-2.0, "COMPLETE")):
        pruner = optuna.pruners.ThresholdPruner(lower=lower, n_warmup_steps=1)
        study = optuna.create_study(direction="maximize", pruner=pruner)
        study.optimize(score, n_trials=1)
        (trial,) = study.trials
        assert trial.state.name == state
        assert hasattr(models[-1], "kernel_") == (state == "COMPLETE")
    assert len(trial.intermediate_values) > 2
    assert max(trial.intermediate_values.values()) > 0.5


def test_imbalanced_learn_oversamples_in_a_pipeline():
    pipeline = pytest.importorskip("imblearn.pipeline")
    over_sampling = pytest.importorskip("imblearn.over_sampling")
    X, y = load_iris(return_X_y=True)
    X, y = X[:120], y[:120]
    model = pipeline.make_pipeline(over_sampling.SMOTE(random_state=0), quick()).fit(X, y)
    assert model.score(X, y) > 0.95


@pytest.mark.slow
def test_shap_explains_predictions():
    shap = pytest.importorskip("shap")
    X, y = make_friedman1(100, random_state=0)
    model = make_pipeline(StandardScaler(), SVGPRegressor(n_inducing=20, random_state=0)).fit(X, y)
    explained = shap.Explainer(model.predict, X[:10])(X[:2])
    total = explained.values.sum(1) + explained.base_values
    np.testing.assert_allclose(total, model.predict(X[:2]), atol=1e-8)


# Searches whose fits run in other processes


@pytest.fixture
def dask_workers():
    """Start two workers of dask, each with one thread."""
    distributed = pytest.importorskip("distributed")
    options = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    with distributed.Client(n_workers=2, **options):
        yield


@pytest.fixture
def ray_workers():
    """Start two workers of ray."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False)
    pytest.importorskip("ray.util.joblib").register_ray()
    yield
    ray.shutdown()


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_searches_on_a_cluster_have_the_scores_of_one_process(backend, request):
    request.getfixturevalue(f"{backend}_workers")
    model = make_pipeline(StandardScaler(), BayesianSVC(max_iter=3, random_state=0))
    grid = {"bayesiansvc__n_inducing": [4, 8], "bayesiansvc__random_state": [0, 1]}
    search = GridSearchCV(model, grid, cv=2, scoring="neg_log_loss")
    X, y = load_iris(return_X_y=True)
    expected = search.fit(X, y).cv_results_["mean_test_score"]
    with joblib.parallel_backend(backend):
        found = search.fit(X, y).cv_results_["mean_test_score"]
    assert_array_equal(found, expected)
    assert len(set(expected)) == 4
