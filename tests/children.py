"""Child processes of a process that has fitted models with two threads; run by test_forks.

``children.py METHOD NAME...`` fits estimators of `ESTIMATORS`, and starts a child process that
predicts with them and fits them anew. ``children.py http`` serves predictions of one estimator by
HTTP, with two forked workers.
"""

import http.server
import json
import multiprocessing
import os
import signal
import sys
from urllib.request import Request, urlopen

import numpy as np
import torch
from every_estimator import ESTIMATORS, assert_same, fitted, predictions, problem

N = 600  # enough rows for PyTorch and scikit-learn to use two threads
TIMEOUT = 90  # seconds


def work(models, expected):
    """Predict with the parent's models, fit them anew, and require bit-equal predictions."""
    assert torch.get_num_threads() == 2
    for name, model in models.items():
        assert_same(predictions(model, N), expected[name])
        assert_same(predictions(fitted(name, N), N), expected[name])


def start_child(method, names):
    """Fit in this process, call `work` in a child process, and predict again in this process."""
    models = {name: fitted(name, N) for name in names}
    expected = {name: predictions(model, N) for name, model in models.items()}
    child = multiprocessing.get_context(method).Process(target=work, args=(models, expected))
    child.start()
    child.join(TIMEOUT)
    hung = child.exitcode is None
    child.kill()
    assert not hung, f"the child by {method} has not ended"
    assert child.exitcode == 0, f"the child by {method} failed"
    for name, model in models.items():
        assert_same(predictions(model, N), expected[name])


def serve():
    """Predict by two forked workers that share a socket and a model fitted before the fork."""
    model = fitted("svgp, laplace", N)
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


if __name__ == "__main__":
    assert torch.get_num_threads() == 2
    how, *names = sys.argv[1:]
    if how == "http":
        serve()
    else:
        start_child(how, names or ESTIMATORS)
