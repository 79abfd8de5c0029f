"""
Serve predictions: latency, workers and HTTP
============================================

A model that answers requests is loaded once and then predicts one row at a time. The example fits a
regressor to 20,000 rows, saves and loads it, measures the latency of single rows and of batches,
and serves it by two forked workers of a plain HTTP server on this machine. Any framework can take
the place of the server; what matters is the order: load, predict once, then fork.
"""

import json
import multiprocessing
import tempfile
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from time import perf_counter

import joblib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator
from sklearn.datasets import make_friedman1
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpsvm import SVGPRegressor

X, y = make_friedman1(21_000, noise=1.0, random_state=0)
X, X_new, y, y_new = X[:20_000], X[20_000:], y[:20_000], y[20_000:]
model = make_pipeline(StandardScaler(), SVGPRegressor(n_inducing=128, random_state=0)).fit(X, y)

# %%
# **Save and load.** The file has the posterior at the inducing points, and not the 20,000 rows. A
# model that was fitted on a GPU loads anywhere.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.joblib"
    joblib.dump(model, path)
    model = joblib.load(path)
    print(f"{path.stat().st_size / 1024:.0f} KiB, {X.nbytes / 1024:.0f} KiB of training rows")


# %%
# **Latency in the process.** The first prediction after loading factorizes the kernel matrix of the
# inducing points; later ones use what it has computed. A row alone costs mostly the checks of its
# values and the calls of a pipeline, so rows that arrive together should be predicted together.


def milliseconds(call, repeats=1):
    """Return the times of a number of calls."""
    times = np.empty(repeats)
    for i in range(repeats):
        start = perf_counter()
        call(i)
        times[i] = 1000 * (perf_counter() - start)
    return times


first = milliseconds(lambda i: model.predict(X_new[:1], return_std=True))
local = milliseconds(lambda i: model.predict(X_new[[i]], return_std=True), 500)
batch = milliseconds(lambda i: model.predict(X_new, return_std=True), 20)
print(f"first row   {first[0]:6.2f} ms")
print(f"later rows  {np.median(local):6.2f} ms, 99 % within {np.quantile(local, 0.99):.2f} ms")
print(f"1,000 rows  {np.median(batch):6.2f} ms")

# %%
# **A server with two workers.** Both are forked from this process, so that they share the memory of
# the loaded model, and accept connections of the same port.


class Predictions(BaseHTTPRequestHandler):
    """Answer a JSON list of rows with means and standard deviations."""

    protocol_version = "HTTP/1.1"  # connections stay open
    wbufsize = -1  # an answer is one packet, which is not delayed

    def do_POST(self):
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            mean, std = model.predict(np.array(rows, dtype=float), return_std=True)
            status, answer = 200, {"mean": mean.tolist(), "std": std.tolist()}
        except ValueError as error:  # missing values, or a wrong number of features
            status, answer = 400, {"error": str(error)}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        """Write no log."""


server = HTTPServer(("127.0.0.1", 0), Predictions)
fork = multiprocessing.get_context("fork")
workers = [fork.Process(target=server.serve_forever) for _ in range(2)]
for worker in workers:
    worker.start()


def ask(connection, rows):
    """Return the status and the content of the answer to a request."""
    connection.request("POST", "/", json.dumps(rows))
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


try:
    connection = HTTPConnection("127.0.0.1", server.server_port)
    status, answer = ask(connection, X_new[:3].tolist())
    assert status == 200
    assert np.array_equal(answer["mean"], model.predict(X_new[:3]))  # to the last bit
    remote = milliseconds(lambda i: ask(connection, X_new[[i]].tolist()), 500)
    print(
        f"over HTTP   {np.median(remote):6.2f} ms, 99 % within {np.quantile(remote, 0.99):.2f} ms"
    )
    print(ask(connection, [[1.0, 2.0]]))
finally:
    for worker in workers:
        worker.terminate()
        worker.join()
    server.server_close()

# %%
# The answers are those of the parent to the last bit. Invalid rows are refused with a message that
# says why. Give each worker few threads (``OMP_NUM_THREADS=1``), or they compete for the cores.

figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
for times, color, label in ((local, "#0072B2", "in the process"), (remote, "#D55E00", "over HTTP")):
    ax.plot(np.sort(times), np.linspace(0, 100, len(times)), color=color, lw=2, label=label)
ax.set(
    xscale="log",
    xlabel="milliseconds",
    ylabel="requests answered within, %",
    title="Mean and standard deviation of one row",
)
ax.minorticks_off()
ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
ax.xaxis.set_major_formatter("{x:g}")
ax.legend(frameon=False)
plt.show()
