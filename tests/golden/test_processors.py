"""Decisions are the same on every processor: what would differ in the last bit is not used."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest

from scheduler.policies.parts.portable import log, power, weighed

ROOT = Path(__file__).parents[2]
#: Of which numpy, or its library for matrices, takes one of several forms by the processor.
_DIFFER = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "cbrt"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "arctan2"),
    *("dot", "matmul", "inner", "vdot", "tensordot", "einsum", "linalg", "convolve", "polyfit"),
}


def _differing(tree: ast.AST) -> Iterator[int]:
    """Give the lines of what numpy may do in several forms. Powers of a plain number are C's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "np" and node.attr in _DIFFER:
                yield node.lineno
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield node.lineno
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            plain = isinstance(node.left, ast.Constant) or _is_two(node.right)
            if not plain:
                yield node.lineno


def _is_two(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 2


def test_what_decides_takes_powers_and_products_from_one_place() -> None:
    files = [*(ROOT / "scheduler/core").rglob("*.py"), *(ROOT / "scheduler/policies").rglob("*.py")]
    assert len(files) > 80
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted(files)
        for line in _differing(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert found == [], "use scheduler.policies.parts.portable"


def test_the_check_sees_each_form() -> None:
    said = "np.log2(x)\nx @ y\nx ** 0.3\nx ** 2\n2.0 ** n\nnp.sqrt(x)\nmath.log(3)\n"
    assert sorted(_differing(ast.parse(said))) == [1, 2, 3]


@pytest.mark.parametrize("policy", ["tide", "pollux", "gavel"])
def test_a_log_replays_identically_on_the_least_of_processors(policy: str) -> None:
    there = np.show_config(mode="dicts")["SIMD Extensions"]
    without = {
        "NPY_DISABLE_CPU_FEATURES": " ".join(there.get("found", ())),
        "OPENBLAS_CORETYPE": "Prescott",
    }
    document = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "console.main", "replay",
         f"tests/golden/{policy}.jsonl.zst", "--json", "-"],
        cwd=ROOT, env={**os.environ, **without}, capture_output=True, check=True,
    ).stdout  # fmt: skip
    hash_ = (ROOT / f"tests/golden/{policy}.hash").read_text().strip()
    assert orjson.loads(document)["state_hash"] == hash_


def test_values_are_those_of_plain_arithmetic() -> None:
    values = np.array([[1.5, 2.0], [700.25, 3e9]])
    assert np.allclose(np.exp(log(values)), values, rtol=1e-12)
    assert power(values, 2.0).tolist() == (values * values).tolist()
    assert power(2.0, np.array([-3, 0, 5])).tolist() == [0.125, 1.0, 32.0]
    assert weighed(values, np.array([2.0, 10.0])).tolist() == [23.0, 1400.5 + 3e10]
    assert log(np.ones((0, 3))).shape == (0, 3)
