"""Child processes of a process that has fitted models with two threads; run by test_forks.

It fits some of `ESTIMATORS`, and starts a child process by each method, which predicts with them
and fits them anew. Then it serves predictions of one estimator by HTTP, with two forked workers.
"""

import http.server
import json
import multiprocessing
import os
import signal
from urllib.request import Request, urlopen

import numpy as np
import torch
from every_estimator import assert_same, fitted, predictions, problem

N = 600  # enough rows for PyTorch and scikit-learn to use two threads
TIMEOUT = 90  # seconds
# One estimator of each family for a fork, which copies the parent; few for a new process.
FORKED = (
    "svc, gradient",
    "svgp, laplace",
    "ep",
    "decoupled classifier",
    "qsgp classifier",
    "qsrvm",
    "additive, sparse",
    "hybrid",
)
NAMES = {"fork": FORKED, "forkserver": ("ep", "hybrid"), "spawn": ("ep", "hybrid")}


def work(models, expected):
    """Predict with the parent's models, fit them anew, and require bit-equal predictions."""
    assert torch.get_num_threads() == 2
    for name, model in models.items():
        assert_same(predictions(model, N), expected[name])
        assert_same(predictions(fitted(name, N), N), expected[name])


def start_child(method, models, expected):
    """Call `work` in a child process, and predict again in this process."""
    child = multiprocessing.get_context(method).Process(target=work, args=(models, expected))
    child.start()
    child.join(TIMEOUT)
    hung = child.exitcode is None
    child.kill()
    assert not hung, f"the child by {method} has not ended"
    assert child.exitcode == 0, f"the child by {method} failed"
    for name, model in models.items():
        assert_same(predictions(model, N), expected[name])


def serve(model):
    """Predict by two forked workers that share a socket and a model fitted before the fork."""
    X, _ = problem(model, N)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(model.predict(np.array(rows)).tolist()).encode())

        def log_message(self, *args):
            pass

    workers = []
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                signal.alarm(TIMEOUT)
                server.serve_forever()
            workers.append(pid)
        try:
            request = Request(
                f"http://127.0.0.1:{server.server_port}", json.dumps(X.tolist()).encode()
            )
            for _ in range(4):
                with urlopen(request, timeout=TIMEOUT / 3) as answer:
                    np.testing.assert_array_equal(json.load(answer), model.predict(X))
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def main():
    """Fit in this process, start child processes, and serve."""
    assert torch.get_num_threads() == 2
    models = {name: fitted(name, N) for name in FORKED}
    expected = {name: predictions(model, N) for name, model in models.items()}
    for method, names in NAMES.items():
        start_child(method, *({name: of[name] for name in names} for of in (models, expected)))
    serve(models["svgp, laplace"])


if __name__ == "__main__":
    main()
