"""Objectives that several methods share: the evidence lower bound."""


def elbo(posterior, likelihood, X, y, n_total, weights=None):
    """Unbiased minibatch estimate of the evidence lower bound, in nats.

    ``n_total / b * sum(weights * E_q[log p(y | f)]) - KL(q || prior)``

    Parameters
    ----------
    posterior : object
        With ``marginals(X) -> (mean, var)``, each (b, c), and ``kl() -> scalar``.
    likelihood : Likelihood
        Its ``expected_log_prob(y, mean, var)`` gives the rows' terms, (b,).
    X : torch.Tensor of shape (b, d)
        A batch of rows, drawn with equal probabilities.
    y : torch.Tensor of shape (b,) or (b, c)
        Class codes or targets, see `Likelihood`.
    n_total : int
        Number of rows that the batch stands for, those of weight zero included.
    weights : torch.Tensor of shape (b,), optional
        Multiply the rows' terms: weight 0 is removal, an integer is repetition.

    Returns
    -------
    value : torch.Tensor, scalar
        To be maximised. A lower bound on the log evidence only if the likelihood is one (the hinges
        are not) and the batch is all rows.

    Notes
    -----
    Source: multi-class Bayesian SVM specification, (S10) and "Sample weights" in section 3.5.
    """
    terms = likelihood.expected_log_prob(y, *posterior.marginals(X))
    if weights is not None:
        terms = weights * terms
    return n_total / len(terms) * terms.sum() - posterior.kl()
