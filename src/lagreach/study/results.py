"""RESULTS.md: what is printed, what came out, and why they differ; generated, never written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lagreach.study.claims import ClaimResult
from lagreach.study.config import StudyConfig
from lagreach.study.group_tables import GroupTables, reach, stacked
from lagreach.study.store import Session


def cell(text: str) -> str:
    """Make a text safe for a Markdown table."""
    return text.replace("|", "/").replace("\n", " ")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out a Markdown table."""
    lines = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    return lines + ["| " + " | ".join(cell(str(value)) for value in row) + " |" for row in rows]


def number(value: float) -> str:
    """Format a count of sequences, or a lag."""
    return "inf" if np.isinf(value) else f"{value:.3g}"


def middle(values: np.ndarray) -> str:
    """Median over the seeds whose number is known, and how many they are if not all.

    >>> middle(np.array([3.0, np.nan, 5.0])), middle(np.array([np.nan]))
    ('4 (2 of 3)', 'unknown')
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return "unknown"
    return number(float(np.median(known))) + ("" if len(known) == len(values) else f" ({len(known)} of {len(values)})")


def verdict_sentence(claims: Sequence[ClaimResult]) -> str:
    """How many claims came out, in a sentence."""
    verdicts = [claim.verdict for claim in claims]
    tested = len(verdicts) - verdicts.count("not tested")
    if not tested:
        return f"None of the {len(claims)} claims was tested: that takes five seeds, and more than a smoke run."
    kinds = {d: [c.verdict for c in claims if c.definition == d] for d in dict.fromkeys(c.definition for c in claims)}
    shares = ", ".join(f"{d} {v.count('yes')} of {len(v) - v.count('not tested')}" for d, v in kinds.items())
    return f"{verdicts.count('yes')} of {tested} tests of printed claims came out as printed: {shares}."


def work_sentence(sessions: Sequence[Session]) -> str:
    """How long the run was worked on, and on what.

    >>> work_sentence([Session("", "`command`, 6 processes, NVIDIA H200, torch 2.11.0", 90.0, 0.0)])
    '1.5 minutes of work (1.5 on NVIDIA H200)'
    >>> work_sentence([Session("", "`comm", 60.0, 0.0)])
    '1.0 minutes of work (1.0 on an unknown machine)'
    """
    minutes: dict[str, float] = {}
    for session in sessions:
        parts = session.what.rsplit(", ", 2)  # command and processes, device, version; or what is left of a damaged log
        device = parts[1] if len(parts) == 3 else "an unknown machine"
        minutes[device] = minutes.get(device, 0.0) + session.seconds / 60
    where = ", ".join(f"{spent:.1f} on {device}" for device, spent in minutes.items())
    return f"{sum(minutes.values()):.1f} minutes of work ({where})"


def results_text(
    config: StudyConfig,
    claims: Sequence[ClaimResult],
    groups: dict[str, GroupTables],
    figures: dict[str, list[tuple[str, str]]],
    sessions: Sequence[Session],
) -> str:
    """The whole page in Markdown."""
    lines = [f"# {config.title}", ""]
    if config.about:
        lines += [config.about.strip(), ""]
    lines += [
        f"Scale **{config.scale}**, {config.seeds} seeds, {len(config.variants)} variants. {work_sentence(sessions)}:",
        "",
        *(f"- {session.started}, {session.seconds / 60:.1f} minutes: {session.what}" for session in sessions),
        "",
        "## Claims",
        "",
        f"{verdict_sentence(claims)} *paper* reads the first-order envelope and the printed recipe "
        "for N; *lagreach* reads exact transport, the dependence signal and the noise of the whole gradient. "
        "*first order* is lagreach with first-order transport, *lag noise* is lagreach with the noise of each lag's own "
        "term. Intervals are 95 % over seeds.",
        "",
    ]
    headers = ("claim", "group", "definition", "claimed", "obtained", "interval", "agrees?", "why")
    rows = [(c.claim, c.group, c.definition, c.printed, c.obtained, c.interval, c.verdict, c.why) for c in claims]
    lines += table(headers, rows)
    for group, tables in groups.items():
        lines += ["", f"## {group or 'All variants'}", "", *numbers_text(tables), ""]
        for caption, path in figures.get(group, []):
            lines += [f"![{cell(caption)}]({path})", "", caption, ""]
    return "\n".join(lines).rstrip() + "\n"


def numbers_text(tables: GroupTables) -> list[str]:
    """Tables of windows, sequences needed at planted lags, and recovered shares; medians over seeds."""
    lines = [
        "Windows H_N (median over seeds). In brackets, here and below, of how many seeds, where the noise of the others is "
        "too heavy for any N:",
        "",
    ]
    rows = []
    for role in tables.roles():
        names = {"exact": "lagreach", "first_order": "first order", "exact_lag_noise": "lag noise", "paper": "paper"}
        for recipe, name in names.items():
            of_role = tables.rows(role, recipe)
            if of_role:
                rows.append([role, name, *map(middle, reach(of_role).T)])
    lines += table(["network", "definition", *(f"N = {n}" for n in tables.budgets)], rows)
    lags = [int(lag) for lag in tables.task_lags]
    lines += ["", "At the planted lags (median over seeds): share recovered / N in the data / N for a planted 5 %:", ""]
    rows = []
    for role in tables.roles():
        of_role = tables.rows(role, "exact")
        scores = [row for row in tables.recovered if row["role"] == role]
        if not of_role:
            continue
        last = max((row["epoch"] for row in scores), default=0)
        cells = []
        for lag in lags:
            at = of_role[0]["lags"].index(lag) if lag in of_role[0]["lags"] else None
            share = [row["recovered"] for row in scores if row["lag"] == lag and row["epoch"] == last]
            shown = f"{np.median(share):.2f}" if share else "-"
            if at is not None:
                in_data, planted = (middle(stacked(of_role, name)[:, at]) for name in ("n_data", "n_probe"))
                shown += f" / {in_data} / {planted}"
            cells.append(shown)
        rows.append([role, *cells])
    return lines + table(["network", *(f"lag {lag}" for lag in lags)], rows)
