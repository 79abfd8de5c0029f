"""GPflow's sparse variational GP as a peer; needs the extra ``gpflow``."""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gpflow
import numpy as np
import tensorflow as tf
import torch

from ._peers import RATE, SVGP

version = gpflow.__version__


class GPflowSVGP(SVGP):
    """GPflow's SVGP, compiled by `tf.function`; multi-class probabilities average 100 draws."""

    def _build(self, Z, n):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.random.set_seed(self.random_state)
        c = 1 if self.classes_ is None else len(self.classes_)
        d = Z.shape[1]
        lengths = np.full(d, max(1.0, np.sqrt(d) / 2))
        likelihoods = {1: gpflow.likelihoods.Gaussian, 2: gpflow.likelihoods.Bernoulli}
        self.model = gpflow.models.SVGP(
            gpflow.kernels.SquaredExponential(lengthscales=lengths),
            likelihoods[c]() if c in likelihoods else gpflow.likelihoods.Softmax(c),
            gpflow.inducing_variables.InducingPoints(Z.double().numpy()),
            mean_function=gpflow.functions.Constant(np.zeros(c if c > 2 else 1)),
            num_latent_gps=c if c > 2 else 1,
            num_data=n,
        )
        adam = tf.keras.optimizers.Adam(RATE)
        self._kind = np.int64 if c > 2 else np.float64
        rows = tf.TensorSpec([None, d], tf.float64), tf.TensorSpec([None, 1], self._kind)

        @tf.function(input_signature=rows)
        def step(X, y):
            adam.minimize(lambda: self.model.training_loss((X, y)), self.model.trainable_variables)

        self._compiled = step
        self._predict = tf.function(self.model.predict_y, input_signature=rows[:1])

    def _step(self, X, y):
        self._compiled(X.double().numpy(), y.numpy().astype(self._kind)[:, None])

    def _parameters(self):
        return gpflow.utilities.deepcopy(gpflow.utilities.parameter_dict(self.model))

    def _restore(self, parameters):
        gpflow.utilities.multiple_assign(self.model, parameters)

    def _log_density(self, X, y):
        mean, std = (torch.tensor(part) for part in self._moments(X))
        return torch.distributions.Normal(mean, std).log_prob(y.double())

    def _probabilities(self, X):
        p = self._predict(X.double().numpy())[0].numpy()
        return np.hstack([1 - p, p]) if p.shape[1] == 1 else p

    def _moments(self, X):
        mean, var = self._predict(X.double().numpy())
        return mean.numpy()[:, 0], np.sqrt(var.numpy()[:, 0])
