"""Where the learning of hyperparameters starts: default kernels, priors, initialization."""
