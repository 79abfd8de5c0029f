"""The Python blocks of README and user guide run, in their order and in one namespace per page.

pytest itself runs the blocks with prompts and output (`--doctest-glob`). The data that a page takes
for granted are made here.
"""

import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch.distributed as dist
from abilities import table
from sklearn.datasets import load_breast_cancer

import skgpsvm

ROOT = Path(__file__).parents[1]
README = pytest.param(ROOT / "README.rst", marks=pytest.mark.slow, id="README")
GUIDE = sorted((ROOT / "doc" / "user_guide").glob("*.rst"))
PAGES = [*ROOT.glob("*.rst"), *GUIDE, *sorted((ROOT / "doc" / "development").rglob("*.rst"))]
SMALL = """
import numpy as np
from sklearn.datasets import load_digits, load_wine, make_friedman1
X, y = make_friedman1(60, n_features=5, noise=1.0, random_state=0)
"""
CUSTOMERS = """
import numpy as np, pandas as pd
rng = np.random.default_rng(0)
def customers_of(n):
    table = pd.DataFrame({"age": rng.normal(45, 14, n), "payment": rng.choice(["a", "b"], n)})
    table.loc[::7, "age"] = np.nan
    return table.astype({"payment": "category"})
customers, new_customers, cancels = customers_of(60), customers_of(5), rng.integers(2, size=60)
np.save("rows.npy", rng.uniform(size=(50_000, 8)).astype(np.float32))
"""
FILES = """
import os
import h5py, pyarrow as pa, pyarrow.parquet as pq
os.mkdir("flights")
delays = y
with h5py.File("flights.h5", "w") as file:
    file["X"], file["y"] = X[:, :2], y
pq.write_table(pa.table({"age": X[:, 0], "distance": X[:, 1]}), "flights/part.parquet")
"""
MODEL = """
from skgpsvm import SVGPRegressor
model = SVGPRegressor().fit(X, y)
"""
SHARD = """
from sklearn.datasets import load_breast_cancer
load_shard = lambda rank: [rows[:60] for rows in load_breast_cancer(return_X_y=True)]
"""
# Statements before the first block of a page, by its name.
BEFORE = {
    "README": [CUSTOMERS],
    "core": [SMALL, MODEL, FILES],
    "many_machines": [SHARD],
    "svgp": ["import numpy as np; error = np.full(150, 0.1)"],
    "additive": [
        SMALL,
        "trips, minutes, policies = X, y, X; years, n_claims = np.ones(60), np.round(y / 10)",
    ],
    "hybrid": [
        SMALL,
        "images = np.random.default_rng(0).random((40, 1, 28, 28), dtype=np.float32)",
        "digits = np.arange(40) % 10",
    ],
}
# A block that imports one of these is left out where it is not installed.
OPTIONAL = {"dask", "h5py", "matplotlib", "optuna", "pandas", "pyarrow", "ray", "rich"}
OPTIONAL |= {"skactiveml", "skops"}


def test_the_table_of_what_estimators_take_is_that_of_the_code():
    """A new table is printed by ``python tests/abilities.py``."""
    page = (ROOT / "doc/user_guide/core.rst").read_text("utf-8")
    assert " ".join(table().split()) in " ".join(page.split())  # lines may be wrapped


def blocks(text, language="python"):
    """Yield the number of the first line, and the code, of each block in a language."""
    pattern = rf"^( *)\.\. code-block:: {language}\n\n((?:(?:\1 +.*)?\n)+)"
    for found in re.finditer(pattern, text, re.M):
        yield text.count("\n", 0, found.start(2)), textwrap.dedent(found[2])


def run(code, names):
    """Run code, unless it needs an optional module that is not installed."""
    try:
        exec(code, names)
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] not in OPTIONAL:
            raise


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def one_process(monkeypatch, tmp_path):
    """Set what torchrun sets in a group of one process."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, **address}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("page", [README, *GUIDE], ids=lambda page: page.stem)
def test_python_blocks_run(page):
    names = {}
    for code in BEFORE.get(page.stem, ()):
        run(code, names)
    for line, code in blocks(page.read_text(encoding="utf-8")):
        run(compile("\n" * line + code, str(page), "exec"), names)


def test_the_table_of_solvers_is_complete():
    [core] = [page for page in GUIDE if page.stem == "core"]
    table = core.read_text().partition("Values of ``solver``")[2]
    found, names = {}, []
    for estimators, solver in re.findall(r"\n   \* - ?(.*)\n     - ``\"(\w+)\"``\n", table):
        names = re.findall(r"`(\w+)`", estimators) or names
        for name in names:
            found.setdefault(name, set()).add(solver)
    estimators = [getattr(skgpsvm, name) for name in skgpsvm.__all__]
    rules = {own.__name__: own._rules for own in estimators if hasattr(own, "_rules")}
    assert found == {name: set(own.solvers) for name, own in rules.items() if own.solvers}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_lines_of_code_fit_the_page(page):
    """The style sheet makes room for 100 characters; longer lines would be cut off."""
    text = page.read_text(encoding="utf-8")
    lines = [line for _, code in blocks(text, r"[\w-]+") for line in code.splitlines()]
    lines += re.findall(r"^ *((?:>>>|\.\.\.) .*)$", text, re.M)
    assert [line for line in lines if len(line) > 100] == []


def test_every_block_of_the_guide_runs():
    """No page has a literal block, which neither these tests nor doctest would run."""
    for page in GUIDE:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^(?!\s*\.\. ).*::$", text, re.M), page.name


# Commands of SLURM, on one node.
SRUN = '#!/bin/bash\nexec "$@"\n'
SCONTROL = "#!/bin/bash\n[ \"$*\" = 'show hostnames' ] && printf 'localhost\\nother\\n'\n"


def test_the_script_for_slurm_runs_with_stand_ins_for_its_commands(tmp_path):
    """A node of two processes ends with the model of one process that has all rows."""
    text = (ROOT / "doc/user_guide/many_machines.rst").read_text("utf-8")
    [train] = [code for _, code in blocks(text) if code.startswith("# train.py")]
    [(_, script)] = blocks(text, "bash")
    for there, here in {"=4": "=1", "=16": "=2", "29500": free_port()}.items():
        assert there in script
        script = script.replace(there, str(here))
    (tmp_path / "train.py").write_text(SHARD.replace("60]", "60][rank::2]") + train)
    for name, command in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(command)
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join((str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "7"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    X, y = load_breast_cancer(return_X_y=True)
    whole = skgpsvm.EPClassifier(random_state=0).fit(X[:60], y[:60])
    shared = joblib.load(tmp_path / "ep.joblib")
    np.testing.assert_allclose(shared.predict_proba(X), whole.predict_proba(X), rtol=0, atol=1e-9)
