#!/usr/bin/env python3
"""Makes reference.json: what numpy and scipy compute of fixed inputs, for tests/reference.rs to compare with.

    python3 -m venv venv && venv/bin/pip install numpy scipy
    venv/bin/python bench/measure/tests/reference/make.py > bench/measure/tests/reference/reference.json
"""
import itertools
import json
import sys

import numpy as np
import scipy
from scipy import optimize, stats

random = np.random.default_rng(20261123)


def plain(value):
    """Arrays and numpy's numbers as JSON has them, with all their digits."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(inner) for inner in value]
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    return value


def steadiness():
    for spread, drift in [(0.02, 0.0), (0.05, 0.01), (0.1, 0.02), (0.03, 0.03), (0.2, 0.0), (0.01, -0.024)]:
        rounds = 1e5 * (1 + drift * np.arange(8) + spread * random.standard_normal(8))
        last = rounds[-5:]
        slope, _ = np.polyfit(np.arange(5), last, 1)
        yield {
            "rounds": rounds,
            "mean": last.mean(),
            "range": np.ptp(last) / last.mean(),
            "slope": slope * 4 / last.mean(),
        }


def isotonic():
    for size in (1, 5, 20, 60):
        values = np.cumsum(random.normal(0.3, 1.0, size))
        yield {"values": values, "pooled": optimize.isotonic_regression(values).x}


def noise():
    for size, sigma in [(50, 3.0), (400, 0.5)]:
        values = 100 + 0.2 * np.arange(size) + sigma * random.standard_normal(size)
        residuals = np.abs(values[1:-1] - (values[:-2] + values[2:]) / 2)
        yield {"values": values, "noise": np.median(residuals) / (stats.norm.ppf(0.75) * np.sqrt(1.5))}


def median_intervals():
    """Ranks, from 0, of the ends of the exact 95 % interval of a median: the binomial test inverted."""
    for size in (6, 7, 8, 9, 12, 15, 20, 30, 50):
        cut = max(k for k in range(size // 2) if stats.binom.cdf(k, size, 0.5) <= 0.025)
        yield {"size": size, "low": cut, "high": size - 1 - cut}


def ratios():
    """Ends of the interval that the exact test by van der Waerden's scores does not reject, by trying every ratio."""
    for of_a, of_b, truth in [(6, 6, 1.1), (6, 6, 1.0), (4, 4, 1.3), (5, 7, 0.9), (8, 8, 1.03), (10, 6, 1.0)]:
        a = 1000 * (1 + 0.05 * random.standard_normal(of_a))
        b = 1000 * truth * (1 + 0.05 * random.standard_normal(of_b))
        every = of_a + of_b
        scores = stats.norm.ppf(np.arange(1, every + 1) / (every + 1))
        sums = np.array([scores[list(c)].sum() for c in itertools.combinations(range(every), of_b)])

        def rejected(theta, upper):
            ranks = stats.rankdata(np.concatenate([a, b / theta]))[of_a:].astype(int)
            found = scores[ranks - 1].sum()
            more_extreme = sums >= found - 1e-9 if upper else sums <= found + 1e-9
            return more_extreme.mean() <= 0.025 + 1e-12

        every_ratio = np.sort((b[:, None] / a[None, :]).ravel())
        low = max(r for r in every_ratio if rejected(r * (1 - 1e-9), True))
        high = min(r for r in every_ratio if rejected(r * (1 + 1e-9), False))
        yield {"a": a, "b": b, "estimate": np.median(every_ratio), "low": low, "high": high}


def bends():
    """The straight line or the one with a bend, by the Bayesian information criterion, over every inner point."""
    for before, after, bend, sigma in [(10, 0, 8, 2.0), (10, -3, 8, 2.0), (10, 5, 12, 1.0), (6, 6, 9, 2.0), (0, 0, 5, 1.0)]:
        x = np.arange(1.0, 21.0)
        y = 50 + before * np.minimum(x, bend) + after * np.maximum(0, x - bend) + sigma * random.standard_normal(20)

        def fit(columns):
            matrix = np.column_stack(columns)
            solution, *_ = np.linalg.lstsq(matrix, y, rcond=None)
            rss = ((y - matrix @ solution) ** 2).sum()
            deviation = np.sqrt(rss / (20 - len(columns) - (len(columns) == 3)))
            error = deviation * np.sqrt(np.linalg.inv(matrix.T @ matrix)[-1, -1])
            return rss, solution[-1], deviation, error

        one = np.ones(20)
        straight = fit([one, x])
        bent = min((fit([one, np.minimum(x, k), np.maximum(0, x - k)]) + (k,) for k in x[2:-2]), key=lambda f: f[0])
        takes = 20 * np.log(bent[0] / 20) + 2 * np.log(20) < 20 * np.log(straight[0] / 20)
        rss, slope, deviation, error = bent[:4] if takes else straight
        degrees = 16 if takes else 18
        span = 20 - (bent[4] if takes else 1)
        sure = abs(slope) > stats.t.ppf(0.995, degrees) * error
        change = slope * span / y.max()
        yield {
            "points": list(zip(x, y)),
            "bend": bent[4] if takes else None,
            "slope": slope / y.max(),
            "noise": deviation / y.max(),
            "after": "rising" if sure and change >= 0.05 else "falling" if sure and change <= -0.05 else "flat",
        }


def knees():
    """Kneedle on curves without noise: the largest distance below the chord."""
    curves = {
        "M/M/1": (np.linspace(0, 0.95, 60), lambda x: 1 / (1 - x)),
        "exponential": (np.linspace(0, 8, 80), np.exp),
        "power": (np.linspace(0, 10, 50), lambda x: x**6),
    }
    for name, (x, f) in curves.items():
        y = f(x)
        distance = (x - x[0]) / (x[-1] - x[0]) - (y - y[0]) / (y[-1] - y[0])
        yield {"curve": name, "points": list(zip(x, y)), "knee": int(np.argmax(distance))}


def partitions():
    """The cheapest partition by dynamic programming over every bound, without pruning."""
    for heights in ([100, 35], [100, 40, 80], [50]):
        series = np.concatenate([h * (1 + 0.08 * random.standard_normal(40)) for h in heights])
        n = len(series)
        residuals = np.abs(series[1:-1] - (series[:-2] + series[2:]) / 2)
        sigma = max(np.median(residuals) / (stats.norm.ppf(0.75) * np.sqrt(1.5)), 0.01 * np.median(series))
        penalty = 4 * np.log(n)

        def cost(i, j):
            part = series[i:j]
            return ((part - part.mean()) ** 2).sum() / sigma**2

        best, last = [-penalty] + [np.inf] * n, [0] * (n + 1)
        for j in range(5, n + 1):
            for i in [0, *range(5, j - 4)]:
                total = best[i] + cost(i, j) + penalty
                if i <= j - 5 and total < best[j]:
                    best[j], last[j] = total, i
        bounds = [n]
        while bounds[-1] > 0:
            bounds.append(last[bounds[-1]])
        bounds.reverse()
        yield {"series": series, "bounds": bounds, "levels": [np.median(series[i:j]) for i, j in zip(bounds, bounds[1:])]}


def bootstraps():
    for size in (6, 12, 40):
        values = 1000 * (1 + 0.05 * random.standard_normal(size))
        result = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=100_000, random_state=1)
        yield {"values": values, "low": result.confidence_interval.low, "high": result.confidence_interval.high}


def quantiles():
    for name, samples in {
        "lognormal": random.lognormal(12, 1.5, 4_000),
        "two modes": np.concatenate([random.normal(1e5, 1e4, 1_900), random.normal(5e7, 5e6, 100)]),
    }.items():
        nanoseconds = np.maximum(samples, 100).astype(np.int64)
        shares = [0.5, 0.9, 0.95, 0.99]
        found = np.quantile(nanoseconds, shares, method="inverted_cdf")
        yield {"of": name, "samples": nanoseconds, "shares": shares, "quantiles": found}


json.dump(
    plain(
        {
            "made_with": {"numpy": np.__version__, "scipy": scipy.__version__},
            "steadiness": list(steadiness()),
            "isotonic": list(isotonic()),
            "noise": list(noise()),
            "median_intervals": list(median_intervals()),
            "t_995": [[n, stats.t.ppf(0.995, n)] for n in (1, 2, 5, 16, 30, 31, 40, 100, 1000)],
            "ratios": list(ratios()),
            "bends": list(bends()),
            "knees": list(knees()),
            "partitions": list(partitions()),
            "bootstraps": list(bootstraps()),
            "quantiles": list(quantiles()),
        }
    ),
    sys.stdout,
    separators=(",", ":"),
)
print()
