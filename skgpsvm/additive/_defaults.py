"""Constants of additive models that change results, each with its evidence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Defaults:
    """Constants of the method. Those of an estimator's signature are not among them.

    Evidence is a commit of this repository or a script of ``benchmarks``.
    """

    # Rows, and rows times features, up to which sparse="auto" has no inducing points with Gaussian
    # noise. They bound the time, as an evaluation is O(n^3 + n^2 d): on 1,000 and 1,500 rows of
    # Friedman's function, inducing points have the same RMSE to .0001, in .12 and .04 of the time
    # (2026-11-28).
    exact_rows: int = 1500
    exact_numbers: int = 20_000
    # Rows from which sparse="auto" has inducing points although it need not, and nats of the
    # evidence that these may lose. On 600 and 1,000 rows of Friedman's function, RMSE and density
    # are within .5 % and .0003 without them, in .15 of the time (2026-11-28).
    smooth_rows: int = 500
    points_loss: float = 1.0
    # Maximum number of pairs with inducing points and interactions="auto". On 600 rows of airfoil,
    # housing and parkinsons, twice as many are not found; with half as many, airfoil has a density
    # .065 smaller and housing .007 larger (2026-11-28).
    pairs: int = 10
    # Expected number of false pairs at a score test of interactions, without inducing points after
    # the first test; prune removes those that gain too little. With .05, three splits of wine have
    # 23 to 46 nats less evidence and errors 3.6 % larger. Twenty development functions have no
    # false pair with either (2026-11-27).
    level: float = 1.0
    # Expected number of false pairs at the first test without inducing points; prune removes those
    # that gain too little. With 1 instead of 4, three splits of housing have up to 60 nats less
    # evidence (2026-11-27).
    first_level: float = 4.0
    # Expected share of false pairs, or number of false point masses, by the gain that each needs,
    # with and without inducing points. With half and twice the former, the density of the same
    # three sets is alike, but for .017 more of housing with twice; with .1 and .2 for the latter, 2
    # and 6 % of 50 draws of one effect have a false pair, and 4 % where the gain that each needs
    # falls with their number (2026-11-27).
    gain_level: float = 0.01
    exact_gain_level: float = 0.1
    # Nats that an effect adds to the gain that the effects of features need together. On 60 and 200
    # rows of noise with 20 features, two classes, effects that pass one by one gain .3 to 1.0 nats
    # each, 1.6 to 6.0 together; on 100 rows of credit_g, .8 and 10 (2026-11-27).
    joint_gain: float = 0.3
    # Level of the score test of effects of classes and counts, and expected share of false ones
    # among those that join. On nine development sets, 150 rows, two splits, the mean log loss is
    # .419, and .418 if all effects join; three sets are .002 to .012 worse if only those join whose
    # p-values are below one over their number (2026-11-28).
    effect_level: float = 0.05
    false_effects: float = 0.5
    # Standard deviation of the prior of the logarithm of the power of class probabilities. Each
    # effect has hyperparameters that are chosen with the rows that are left out, which makes them
    # optimistic. Without a power, 17 development sets, up to 400 rows, two splits, have a mean log
    # loss of .408; with .5, .407, and .400 with .2, which is .04 worse on the worst split instead
    # of .08 (2026-11-27).
    power_spread: float = 0.2
    # Pairs that are added after each score test. With 2 and 10 the fits are the same (2026-11-27).
    pairs_at_once: int = 5
    # Share of the gain it needs that a pair must reach with inducing points in the rounds that
    # compare kernels. On four development sets with candidates, false pairs of classes have up to
    # .8 nats after one round, of some 10, and gains at most double until the end. With noise that
    # varies, a gain grew from .5 nats after one round to 2.8 after three and 4.4 after eight
    # (2026-11-27).
    promising_share: float = 0.25
    # Nats by which smooth pairs must have more evidence than rough ones. Five splits of housing
    # have up to 10 nats more, and errors up to 16 % larger; 1,500 rows of Friedman's function have
    # 17 to 27 nats, and smooth pairs have errors a quarter smaller (2026-11-26).
    clear_gain: float = 15.0
    # The comparison of kernels of pairs ends where the next step is expected to gain less than this
    # share of ``clear_gain``. With half the density is .001 smaller, with twice as much .008 larger
    # on three sets, whose pairs get other kernels (2026-11-27).
    trial_share: float = 0.1
    # Length scale of the smooth interaction of the score test, and bins of a number. On eight draws
    # of 500 rows with a weak product, 16 bins have similar scores (2026-11-27). With half and twice
    # the length the density is .005 and .023 larger, with 4 and 16 bins .011 and .012 smaller.
    test_length: float = 0.5
    test_smooth_bins: int = 8
    # Rows in a cell of the score test on average, at least, and cells of a grid, at most. Pairs of
    # categories with more cells are not tested. A pair with 1024 takes some 10 ms. Half and twice
    # as many change no fit (2026-11-27).
    test_rows_in_cell: int = 24
    test_cells: int = 1024
    # Rows of the score test. On 30,000 rows of Friedman's function, fits with half and twice as
    # many have the same RMSE to .0001 (2026-11-28).
    test_rows: int = 10_000
    # Initial length scales, on the unit interval. With half and twice the first, the density is
    # .011 and .001 smaller, with half and twice the second alike (2026-11-27,
    # ``benchmarks/constants.py``, as all entries of this date that name no set).
    length: float = 0.4
    pair_length: float = 0.6
    # Atoms of the measure of a number; more values are merged. With 50 and 200 the density is
    # within .001 (2026-11-27).
    atoms: int = 100
    # Least number of inducing points of an effect, and of each feature of a pair. Features with
    # fewer values than the former have no point masses: with 20, the density is .029 smaller, with
    # 5 alike (2026-11-27). The latter counts below 144 rows only: the sets of ``pairs`` do not
    # change with half or twice as many.
    points: int = 10
    pair_points: int = 5
    # Number of inducing points of an effect with n_inducing="auto", at least and at most, and the
    # number of those of all effects between the two. On the development sets of more than 1,500
    # rows, 40 points instead of 20 take 1.0 to 3.5 times as long; the RMSE of parkinsons falls from
    # .40 to .24, of bike from .066 to .061, of protein from .799 to .792, others stay within .2 %.
    # 60 points are no better (2026-11-26). Classifiers have fewer, at least too, since the
    # precision p (1 - p) of a label is at most 1/4 (2026-11-28).
    min_auto_points: int = 20
    max_auto_points: int = 40
    all_auto_points: int = 1000
    # The same at least, with more than ``all_auto_points / min_auto_points`` features. 5,000 rows
    # of 300 features, of which eleven have effects, take 44 s and 983 MiB with 7 points, 91 s and
    # 1,682 MiB with 10; RMSE is .084 and .079 with noise of .5 (2026-11-28).
    wide_auto_points: int = 7
    # With n_inducing_interaction="auto": inducing points of each feature of a pair at first, of the
    # grids of all pairs at most, with a single latent, and growth of the former below which grids
    # are not refined. On 20,000 rows with hot spots, a step from 32 to 45 points takes as long
    # again as all before and lowers the RMSE from .0210 to .0205 (2026-11-27).
    first_pair_points: int = 8
    grid_points: int = 2048
    grid_growth: float = 1.5
    # Lower bound of length scales of pairs, unless their grids are fine, and the multiple of the
    # bound below which grids are refined. On the sets of ``pairs``, the density is .007, .001 and
    # .060 smaller with half the bound, in 2.2 times the time, and .011, .000 and .080 with half the
    # multiple; with twice of each it is the same (2026-11-28).
    min_pair_length: float = 0.25
    rough_length: float = 1.5
    # Eigenvalue of the Gram matrix of a term's whitened features over the noise, summed over
    # latents, below which a direction of the features is left out of learning, times the largest
    # eigenvalue of the term if that is below 1. Fifteen evaluation sets, two splits, have the same
    # log loss as with all directions, but for .001 on vowel and .004 on glass; two development sets
    # and twelve generated ones are the same to .0001. A hundred times as much takes .6 of the time
    # of ten classes, but glass loses effects (six splits: .837 instead of .824), whose length
    # scales cannot become short (2026-11-29).
    least_information: float = 1e-4
    # Polynomials per inverse of the smallest length scale, and at most. For a squared exponential
    # of length scale 0.1, 34 give an error of 1e-8 (`CenteredAtPoints`).
    polynomials: float = 3.2
    max_polynomials: int = 64
    # Nats over all rows for which another round is taken. With half of them the density is alike,
    # with twice as many it is .009 smaller (2026-11-27).
    round_gain: float = 0.05
    # Rounds that compare kernels of pairs; likewise. With 10 of the latter, the log loss of seven
    # development sets, 120 rows, is the same to .0001, in a fifth more time (2026-11-27).
    trial_rounds: int = 1
    site_trial_rounds: int = 4
    # Steps of Fisher scoring in a round with likelihoods whose sites change between rounds. One and
    # two steps ended with the same evidence on 100 rows of 100 features without inducing points
    # (-40.6 nats), two in 11 rounds instead of 13.
    site_scoring_steps: int = 2
    # Passes over the sites before anything else is learned. On the sets of ``initial_variance``,
    # the log loss with half and twice as many is within .001 (2026-11-28).
    site_passes: int = 5
    # Exponent by which steps on minibatches shrink with the number of passes. On the sets of
    # ``initial_variance``, batches of 64 rows, the log loss with half is .002 larger, .001 and .007
    # smaller in 1.4 times the time, and with twice at most .011 larger in .8 (2026-11-28).
    decay: float = 0.7
    # Variance of the latents at which sites start. On 300 rows of pima, breast and car, the log
    # loss with half and twice as much is within .001 (2026-11-28).
    initial_variance: float = 0.5
    # Initial noise variance of the normalized y. With half and twice as much the density is within
    # .002 (2026-11-27); with half, 2,400 rows with Laplace noise take 28 rounds, not 19.
    initial_noise: float = 0.2
    # Prior variance of the constant: of the normalized y, of the latents of classes, and of a log
    # rate. Half and twice the first change the density by less than .001 (2026-11-27), of the
    # second the log loss of pima, breast and car by at most .002, and of the last the log density
    # of nine fits of 150 counts by .0001 (2026-11-28).
    constant: float = 1.0
    constant_of_classes: float = 25.0
    constant_of_rates: float = 100.0
    # Skewness of a feature from which on it is transformed. With .25 the density is .004 smaller,
    # with 1 .026 (2026-11-27).
    skewness: float = 0.5
    # A number is a point mass if at least this share of the rows and this many rows have it, and
    # this many times as many as the median of its neighbors. On two splits of ionosphere, with
    # about 80 candidates of which one is kept, log loss is .216 instead of .233 and .216 instead of
    # .218; on ten other development sets, log loss or RMSE are alike (2026-11-26).
    mass_share: float = 0.05
    mass_rows: int = 10
    mass_ratio: float = 5.0
    # Point masses of a feature at most, without sentinels; more are rounded numbers.
    max_masses: int = 3
    # A number that at least ``mass_rows`` rows have is a sentinel if its distance from all others
    # is more than this many times their range. With 2, highway access 24 of housing, after 1 to 8,
    # was one, and lost its pairs.
    sentinel_gap: float = 5.0
    # Probability that a fit without rough effects looks at steps.
    step_level: float = 0.05
    # Bins of the coarsest grid of the test, and rows in a bin of the finest one, at least. On 40
    # sets of 500 rows, of five shapes of ``benchmarks/steps.py``, 2 and 8 bins find the same steps;
    # with 12 rows a step is lost (27 % more error), with 3 a sawtooth is found (10 % less). Fits of
    # 100 and 200 rows have no steps (2026-12-01).
    step_bins: int = 4
    step_rows_in_bin: int = 6
    # Rows in a bin of steps on average, at least, and bins of all features, at most. With 200 bins,
    # 2,000 rows with a step and noise .1 have an RMSE of .040; that of the best spline is .035
    # (2026-11-27).
    step_rows: int = 4
    all_steps: int = 400
    # Projected draws of the weights of effects with constraints. Their number sets the error of
    # variances, 8 %, and the time: 38 ms each with 25 effects.
    projected_draws: int = 300
    # Nats of the ELBO that the default rank may lose. Half and twice as many choose the same
    # (2026-11-27).
    rank_loss: float = 1e-2


DEFAULTS = Defaults()
