"""Fast symmetric stable law for alpha in [1, 2]: local polynomials in alpha and in a bounded coordinate of x.

Two smooth functions are tabulated (see `lagreach.tails._stable_quadrature` for h and S), each with an inner
branch in ``w = (1 + x^2)^(-1/2)`` and a tail branch in ``y = (x / 20)^(-alpha)``:

    inner   h / w^3                       S / (x w^3)
    tail    f x^(1 + alpha) / (2 - alpha)  SF x^alpha / (2 - alpha)

They are analytic in alpha up to and including 2, so neither the change from power law to Gaussian nor the
divergence of log f there has to be interpolated. Chebyshev interpolation from quadrature values (27 nodes a
panel, error near rounding) is cut once into small pieces of low degree, cheap to look up: about 50 ms on first
use, nothing at import.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from lagreach.tails import _stable_quadrature as quadrature

FloatArray = NDArray[np.float64]

ALPHA_FROM = 1.0
_NODES = 27  # Chebyshev nodes per panel and direction
_ALPHA_PIECES, _ALPHA_DEGREE = 32, 6
_W_PIECES, _TAIL_PIECES, _X_DEGREE = 256, 8, 7
# panels of w in units of a piece; the first one starts just beyond SERIES_FROM (w = 0.0499 there)
_W_EDGES = (12, 24, 48, 96, 176, 256)
_INNER = _W_PIECES - _W_EDGES[0]
_BLOCK = 8192


def law(x: FloatArray, alpha: FloatArray | float, want: tuple[str, ...]) -> dict[str, FloatArray]:
    """Same contract as `lagreach.tails._stable_quadrature.law`, to which exponents below 1 are passed on."""
    low = np.asarray(alpha) < ALPHA_FROM
    if low.ndim == 0:
        return quadrature.law(x, alpha, want) if low else _blocks(x, alpha, want)
    if not low.any():
        return _blocks(x, alpha, want)
    exponents = np.asarray(alpha)
    results = {name: np.empty_like(x) for name in want}
    for mask, engine in ((low, quadrature.law), (~low, _blocks)):
        for name, values in engine(x[mask], exponents[mask], want).items():
            results[name][mask] = values
    return results


def _blocks(x: FloatArray, alpha: FloatArray | float, want: tuple[str, ...]) -> dict[str, FloatArray]:
    """Evaluate a cache-sized block of points at a time."""
    results = {name: np.empty_like(x) for name in want}
    for start in range(0, x.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        exponent = quadrature.pick(alpha, part)
        for name, values in quadrature.combine(x[part], exponent, want, _remainders, _tail_sums).items():
            results[name][part] = values
    return results


def _remainders(x: FloatArray, alpha: Any, want: tuple[str, ...]) -> dict[str, FloatArray]:
    w = 1.0 / np.sqrt(1.0 + x * x)
    cube = w * w * w
    place = w * _W_PIECES
    piece = np.minimum(place.astype(np.intp), _W_PIECES - 1)
    local = place - piece - 0.5
    piece -= _W_EDGES[0]
    rest: dict[str, FloatArray] = {}
    if "sf" in want:
        rest["sf"] = cube * _lookup("sf", alpha, piece, local)[0]
    if "slope" in want:
        value, rate = _lookup("pdf", alpha, piece, local, "x")
        rest["pdf"] = cube * value
        rest["slope"] = -x * cube * (3.0 * w * w * value + cube * _W_PIECES * rate)
    elif "pdf" in want and "alpha" not in want:
        rest["pdf"] = cube * _lookup("pdf", alpha, piece, local)[0]
    if "alpha" in want:
        value, rate = _lookup("pdf", alpha, piece, local, "alpha")
        rest["pdf"] = cube * value
        rest["alpha"] = cube * ((2.0 - alpha) * rate * _ALPHA_PIECES - value)
    return rest


def _tail_sums(x: FloatArray, alpha: Any, want: tuple[str, ...]) -> dict[str, FloatArray]:
    d = 2.0 - alpha
    log_ratio = np.log(x / quadrature.SERIES_FROM)
    y = np.exp(-alpha * log_ratio)
    place = y * _TAIL_PIECES
    piece = np.minimum(place.astype(np.intp), _TAIL_PIECES - 1)
    local = place - piece - 0.5
    piece += _INNER
    sums: dict[str, FloatArray] = {}
    if "sf" in want:
        sums["sf"] = d * _lookup("sf", alpha, piece, local)[0]
    if "slope" in want or "alpha" in want:
        value, rate = _lookup("pdf", alpha, piece, local, "x")
        rate = _TAIL_PIECES * rate * y
        sums["pdf"] = d * value
        sums["slope"] = d * ((1.0 + alpha) * value + alpha * rate)
    elif "pdf" in want:
        sums["pdf"] = d * _lookup("pdf", alpha, piece, local)[0]
    if "alpha" in want:
        _, alpha_rate = _lookup("pdf", alpha, piece, local, "alpha")
        sums["alpha"] = d * (alpha_rate * _ALPHA_PIECES - log_ratio * rate - np.log(x) * value) - value
    return sums


# --- lookup -----------------------------------------------------------------------------------------------


def _lookup(
    function: str, alpha: Any, piece: NDArray[np.intp], local: FloatArray, rate: str | None = None
) -> tuple[FloatArray, FloatArray]:
    """Value, and derivative by the local coordinate named ``rate``, of one tabulated function.

    One alpha for all points and an alpha per point go through the same sums in the same order, so that a result
    does not depend on what it is computed together with.
    """
    slopes: list[FloatArray] = []
    if np.ndim(alpha) == 0:
        rows, rate_rows = _at_alpha(function, float(alpha), rate == "alpha")
        coefficients = [row.take(piece) for row in rows]
        if rate == "alpha":
            slopes = [row.take(piece) for row in rate_rows]
    else:
        table = _tables()[function]
        column, offset = _alpha_place(alpha)
        flat = table.reshape(*table.shape[:2], -1)
        index = column * table.shape[3] + piece
        coefficients = []
        for j in range(_X_DEGREE + 1):
            block = [part.take(index) for part in flat[:, j]]
            coefficients.append(_polynomial(block, offset))
            if rate == "alpha":
                slopes.append(_derivative(block, offset))
    value = _polynomial(coefficients, local)
    if rate == "x":
        return value, _derivative(coefficients, local)
    return value, _polynomial(slopes, local) if rate == "alpha" else value


def _polynomial(coefficients: Any, at: Any) -> FloatArray:
    total = coefficients[-1] * at
    for c in coefficients[-2:0:-1]:
        total += c
        total *= at
    total += coefficients[0]
    return total


def _derivative(coefficients: Any, at: Any) -> FloatArray:
    return _polynomial([j * c for j, c in enumerate(coefficients)][1:], at)


def _alpha_place(alpha: Any) -> tuple[Any, Any]:
    place = (alpha - ALPHA_FROM) * _ALPHA_PIECES
    column = np.minimum(np.asarray(place).astype(np.intp), _ALPHA_PIECES - 1)
    return column, place - column - 0.5


@lru_cache(maxsize=64)
def _at_alpha(function: str, alpha: float, rate: bool) -> tuple[FloatArray, FloatArray]:
    """Polynomial coefficients (degree, piece) in the x coordinate at one alpha, and their alpha derivative."""
    column, offset = _alpha_place(alpha)
    slab = _tables()[function][:, :, int(column)]
    value = _polynomial(slab, float(offset))
    return value, _derivative(slab, float(offset)) if rate else value


# --- construction -----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _tables() -> dict[str, FloatArray]:
    """Tables (alpha degree, x degree, alpha piece, x piece) of the ``pdf`` and the ``sf`` function."""
    nodes = _chebyshev_nodes(_NODES)
    alphas = ALPHA_FROM + (2.0 - ALPHA_FROM) * nodes
    in_alpha = _cut(_ALPHA_PIECES, _ALPHA_DEGREE)
    blocks: dict[str, list[FloatArray]] = {"pdf": [], "sf": []}
    for first, last in pairwise(_W_EDGES):
        w = (first + (last - first) * nodes) / _W_PIECES
        x = np.sqrt((1.0 - w) * (1.0 + w)) / w
        rows = [quadrature.remainders(x, float(a), ("pdf", "sf")) for a in alphas]
        in_w = _cut(last - first, _X_DEGREE)
        for name, block in blocks.items():
            values = np.stack([row[name] for row in rows]) / w**3
            block.append(_expand(in_alpha, values, in_w))
    rows = [_tail_values(nodes, float(a)) for a in alphas]
    in_y = _cut(_TAIL_PIECES, _X_DEGREE)
    for name, block in blocks.items():
        block.append(_expand(in_alpha, np.stack([row[name] for row in rows]), in_y))
    return {name: np.concatenate(block, axis=3) for name, block in blocks.items()}


def _tail_values(y: FloatArray, alpha: float) -> dict[str, FloatArray]:
    x = quadrature.SERIES_FROM * y ** (-1.0 / alpha)
    return {name: s / (2.0 - alpha) for name, s in quadrature.tail_sums(x, alpha, ("pdf", "sf")).items()}


def _chebyshev_nodes(count: int) -> FloatArray:
    """Chebyshev points of the first kind on (0, 1)."""
    return 0.5 - 0.5 * np.cos(np.pi * (np.arange(count) + 0.5) / count)


def _cut(pieces: int, degree: int) -> FloatArray:
    """Map (piece, degree, node) from values at Chebyshev nodes of [0, 1] to polynomials on equal pieces.

    Each polynomial interpolates at its Lobatto points, so neighbours agree at their common end; its variable
    runs over [-1/2, 1/2].
    """
    points = -0.5 * np.cos(np.pi * np.arange(degree + 1) / degree)
    to_monomials = np.linalg.inv(np.vander(points, increasing=True))
    where = (np.arange(pieces)[:, None] + 0.5 + points) / pieces
    nodes = _chebyshev_nodes(_NODES)
    fit = np.linalg.inv(chebyshev.chebvander(2.0 * nodes - 1.0, _NODES - 1))
    values = chebyshev.chebvander(2.0 * where - 1.0, _NODES - 1) @ fit
    return np.einsum("jl,pln->pjn", to_monomials, values)


def _expand(in_alpha: FloatArray, values: FloatArray, in_x: FloatArray) -> FloatArray:
    return np.einsum("akm,mn,pjn->kjap", in_alpha, values, in_x, optimize=True)
