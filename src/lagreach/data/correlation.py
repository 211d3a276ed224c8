"""How long a series remembers itself: correlations in time that can be relied on, and what stretches of it share.

The contrast of a window is a sum over its steps of (part of the target) x (part of the input). If inputs and targets have
nothing to do with each other, its correlation at a distance d is the product of theirs, rho_x(d) rho_y(d).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

Array = np.ndarray
CERTAIN = 2.0  # standard errors below which a first decay has come to its end
PEAK = 3.5  # standard errors from which a later correlation is believed
FEWEST_CYCLES = 6  # of something periodic; fewer could be chance
AROUND = 12  # frequencies on each side that tell the usual power
CERTAINTY = 12.0  # degrees of freedom that their median has; half of 25 squares, for neighbours share some
CHANCE = 0.01  # of finding a line in noise, white or not, among all its frequencies
MOST_LINES = 12


def autocorrelation(parts: list[Float[Array, "time dim"]], most: int) -> Float[Array, "distance dim"]:
    """Correlation of each column with itself at the distances 0 .. most, over the parts of a series together.

    The mean that is taken off is that of the part itself, which hides some of a slow series: what it hides, the variance of
    that mean, is put back.
    """
    steps = sum(map(len, parts))
    products, pairs = np.zeros((most + 1, parts[0].shape[1])), np.zeros((most + 1, 1))
    for part in parts:
        centred = part - part.mean(0)
        reach = min(most + 1, len(part))
        size = 2 ** int(np.ceil(np.log2(2 * len(part))))
        power = np.abs(np.fft.rfft(centred, size, axis=0)) ** 2
        products[:reach] += np.fft.irfft(power, size, axis=0)[:reach]
        pairs[:reach, 0] += len(part) - np.arange(reach)
    covariance = products / np.maximum(pairs, 1)
    variance = covariance[0]
    plain = np.where(variance > 0, covariance / np.where(variance > 0, variance, 1.0), 0.0)
    plain[0] = 1.0
    correlation = plain
    for _ in range(4):
        sums = 1 + 2 * settled(correlation, steps)[1:].sum(0)
        hidden = np.clip(len(parts) * sums / steps, 0.0, 0.5)
        correlation = plain * (1 - hidden) + hidden
    return correlation


def settled(correlation: Float[Array, "distance dim"], steps: int) -> Float[Array, "distance dim"]:
    """Correlations without the noise of their estimates.

    Up to where they fall into that noise they are taken as they are; from there on they decay as they did so far. Later ones
    (of seasons, say) count where they stand out.
    """
    distance = np.arange(len(correlation))[:, None]
    squares = np.cumsum(np.square(correlation), axis=0)
    error = np.sqrt(np.maximum(2 * squares - 1, 1.0) / steps)  # Bartlett's, if there is nothing from here on
    cleaned = np.where(np.abs(correlation) > PEAK * error, correlation, 0.0)
    for column in range(correlation.shape[1]):
        of_column = correlation[:, column]
        lost = np.flatnonzero(np.abs(of_column) < CERTAIN * error[:, column])
        end = int(lost[0]) if len(lost) else len(of_column)
        cleaned[:end, column] = of_column[:end]
        if 1 < end < len(of_column):
            last = abs(of_column[end - 1])
            rate = np.log(max(last, 1e-3)) / (end - 1)
            tail = last * np.exp(rate * (distance[end:, 0] - end + 1))
            cleaned[end:, column] = np.where(np.abs(cleaned[end:, column]) > tail, cleaned[end:, column], tail)
    return cleaned


def without_shared_lines(x: Float[Array, "time dim"], y: Float[Array, "time out"]) -> tuple[Array, Array, list[float]]:
    """Take cycles off both series that both have, and return their periods.

    A cycle that both share is there in the future too: it is a dependence, not a coincidence of slow series, which is what
    correlations are asked for here.
    """
    frequencies = [
        frequency for frequency in _lines(x) if any(abs(frequency - other) < 1 / len(x) for other in _lines(y))
    ]
    if not frequencies:
        return x, y, []
    time = np.arange(len(x))
    waves = [wave(2 * np.pi * f * time) for f in frequencies for wave in (np.cos, np.sin)]
    design = np.stack([np.ones(len(x)), *waves], axis=1)
    clean = [v - design @ np.linalg.lstsq(design, v, rcond=None)[0] for v in (x, y)]
    return clean[0], clean[1], [1 / f for f in frequencies]


def _lines(values: Float[Array, "time dim"]) -> list[float]:
    """Frequencies at which the power of some column stands out of its surroundings, the strongest first."""
    steps = len(values)
    if steps < 16 * FEWEST_CYCLES:
        return []
    spread = values.std(0)
    unit = (values - values.mean(0)) / np.where(spread > 0, spread, 1.0)
    power = (np.abs(np.fft.rfft(unit * np.hanning(steps)[:, None], axis=0)) ** 2).max(1)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(power, AROUND, mode="reflect"), 2 * AROUND + 1)
    usual = np.median(around, axis=1)
    peak = power[1:-1] >= np.maximum(power[:-2], power[2:])
    places = np.flatnonzero(peak & (power[1:-1] > _line(power.size * values.shape[1]) * usual[1:-1])) + 1
    places = places[places >= FEWEST_CYCLES]
    places = places[np.argsort(-power[places])][:MOST_LINES]
    frequencies = []
    for place in places.tolist():
        left, here, right = np.log(power[place - 1 : place + 2] + 1e-300)
        bend = left - 2 * here + right
        frequencies.append((place + (0.5 * (left - right) / bend if bend < 0 else 0.0)) / steps)
    return frequencies


def _line(frequencies: int) -> float:
    """Times the usual power that the loudest of so many frequencies of noise has by `CHANCE`.

    Power is exponential, and its median known by so many degrees of freedom, so that single frequencies go beyond c times their
    mean with the probability ``(1 + c / CERTAINTY) ** -CERTAINTY``.

    >>> [round(_line(count)) for count in (500, 6000)]
    [25, 35]
    """
    return CERTAINTY * ((frequencies / CHANCE) ** (1 / CERTAINTY) - 1) / np.log(2)


def neighbours(correlation: Float[Array, "distance"], length: int, gap: int) -> float:
    """Correlation of the means of two stretches of `length` steps with `gap` steps between them."""
    reach = len(correlation)
    padded = np.concatenate((correlation, np.zeros(max(0, 2 * length + gap + 1 - reach))))
    inside = np.arange(1, length)
    within = length * padded[0] + 2 * ((length - inside) * padded[inside]).sum()
    shift = np.arange(-(length - 1), length)
    between = ((length - np.abs(shift)) * padded[length + gap + shift]).sum()
    return float(between / within) if within > 0 else 1.0
