"""
Routing of texts: answer what is clear, pass on the rest
========================================================

A help desk routes short messages to six teams. Words are counted by ``TfidfVectorizer``, whose
sparse matrix ``BayesianSVC`` takes as it is. What matters is not only how many messages reach the
right team: a message that could belong to two teams should go to a person. The probabilities tell
which ones those are. The messages are generated.
"""

import textwrap
from time import process_time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from skgpsvm import BayesianSVC

TEAMS = {
    "billing": "invoice charge payment card refund amount bill twice tax receipt bank price paid",
    "delivery": "parcel courier late tracking address driver arrived shipped depot door waiting",
    "returns": "return broken exchange size label refund wrong item faulty send back replacement",
    "account": "password login email locked reset profile code account sign username delete phone",
    "outage": "error page down crash app loading screen server slow update browser freeze blank",
    "sales": "discount order stock price offer available catalog quote bulk size color delivery",
}
COMMON = (
    "hello please the my is i have it to a not and you can help since yesterday again still why "
    "thanks need want customer number asked told nobody answer today week already urgent"
).split()


def messages(n, seed):
    """Return texts, and the teams that they are for."""
    rng = np.random.default_rng(seed)
    words = {team: text.split() for team, text in TEAMS.items()}
    texts, teams = [], rng.choice(list(TEAMS), n)
    for team in teams:
        other = rng.choice(list(TEAMS))
        size = rng.poisson(9) + 3
        shares = np.array([0.28, 0.14 * rng.uniform(), 0.0])
        shares[2] = 1 - shares.sum()
        source = rng.choice(3, size, p=shares)
        pools = words[team], words[other], COMMON
        texts.append(" ".join(rng.choice(pools[k]) for k in source))
    return texts, teams


texts, teams = messages(700, seed=0)
new_texts, new_teams = messages(3000, seed=1)
for text, team in zip(texts[:4], teams[:4], strict=True):
    print(textwrap.fill(f"{team}: {text}", 92, subsequent_indent="    "))

# %%
# **The models.** ``BayesianSVC`` needs no calibration. The support vector machine gets its
# probabilities by cross-validation, and the logistic regression its penalty.

models = {
    "BayesianSVC": BayesianSVC(random_state=0),
    "SVC, calibrated": CalibratedClassifierCV(SVC(), method="temperature", ensemble=False),
    "logistic regression": LogisticRegressionCV(
        Cs=[1, 3, 10, 30],
        cv=3,
        scoring="neg_log_loss",
        use_legacy_attributes=False,
        l1_ratios=(0,),
    ),
}
found = {}
print("                     log loss  accuracy  seconds")
for name, model in models.items():
    start = process_time()
    pipeline = make_pipeline(TfidfVectorizer(), model).fit(texts, teams)
    seconds = process_time() - start
    p = found[name] = pipeline.predict_proba(new_texts)
    right = pipeline.classes_[p.argmax(1)] == new_teams
    print(f"{name:19s}  {log_loss(new_teams, p):8.3f}  {right.mean():8.3f}  {seconds:7.1f}")

# %%
# **Whom to ask.** Messages are answered in the order of their largest probability. Those about
# which the model is least sure go to a person, and the errors among the others become few.
# ``predict_set`` names the teams that the person has to choose from.

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
colors = {"BayesianSVC": "#0072B2", "SVC, calibrated": "#D55E00", "logistic regression": "#999999"}
classes = pipeline.classes_
shares = np.arange(1, len(new_texts) + 1) / len(new_texts)
for name, p in found.items():
    largest, wrong = p.max(1), classes[p.argmax(1)] != new_teams
    order, many = np.argsort(-largest), shares > 0.3
    errors = np.cumsum(wrong[order]) / (shares * len(wrong))
    left.plot(shares[many], 100 * errors[many], color=colors[name])
    bins = np.array_split(order, 12)
    points = [(largest[each].mean(), 1 - wrong[each].mean()) for each in bins]
    right.plot(*zip(*points, strict=True), "o-", ms=4, color=colors[name], label=name)
left.set(xlabel="share of messages answered", ylabel="errors among them, %", xlim=(0.3, 1))
left.set_ylim(0)
right.plot([0.3, 1], [0.3, 1], color="#bbbbbb", linewidth=0.8, zorder=0)
right.set(xlabel="largest probability", ylabel="share that is right")
right.legend(frameon=False)
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

router = make_pipeline(TfidfVectorizer(), BayesianSVC(random_state=0)).fit(texts, teams)
sets = router[-1].predict_set(router[:-1].transform(new_texts), level=0.95)
sure = sets.sum(1) == 1
hit = sets[np.arange(len(sets)), np.searchsorted(classes, new_teams)]
print(f"routed at once: {sure.mean():.0%}, of which {hit[sure].mean():.1%} reach the right team")
print(f"for a person:   {1 - sure.mean():.0%}, with {sets[~sure].sum(1).mean():.1f} teams each")
print(f"the right team is in the set: {hit.mean():.1%}")

# %%
# The logistic regression is the simpler model, and may be enough. See :ref:`sparse_X` for what
# happens with more words than here.
