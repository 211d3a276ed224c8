"""The way of the data through lagreach, as an SVG picture; a test checks that every module in it exists."""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT = 920, 426
BOX = (150, 64)
# name, the module it comes from, what it is; column and row
STATIONS = (
    ("your module", "", "any torch model", 0, 0),
    ("View, Recurrence", "lagreach.adapters", "a Cell and its weights", 1, 0),
    ("Rollout", "lagreach.transport.rollout", "states of every step", 2, 0),
    ("λ by lag", "lagreach.transport.exact", "gradients carried back", 3, 0),
    ("lag gradients", "lagreach.gradients", "g⁽ˡ⁾, swap contrast, probe", 4, 0),
    ("block means", "lagreach.gradients.blocks", "mergeable over shards", 4, 1),
    ("noise by sequence", "lagreach.gradients.noise", "the whole gradient, projected", 3, 1),
    ("kappa, tail fit", "lagreach.tails", "how averages settle", 2, 1),
    ("N(l)", "lagreach.diagnosis.assemble", "sequences needed", 1, 1),
    ("Window", "lagreach.diagnosis.window", "reach, limits", 0, 1),
    ("Diagnosis", "lagreach.diagnosis.result", "frozen, printable", 0, 2),
    ("netCDF", "lagreach.diagnosis.files", "save, load", 1, 2),
    ("text, figures, page", "lagreach.report", "for people", 2, 2),
    ("callbacks, CLI", "lagreach.callbacks", "while training", 3, 2),
    ("studies", "lagreach.study", "tasks, training, claims", 4, 2),
)
ARROWS = tuple((i, i + 1) for i in range(10))
OUTLETS = range(11, 15)  # what is made of a diagnosis
BIG = range(1, 5)  # where tensors are large, and on the model's device


def modules() -> list[str]:
    """Return the modules that the picture names."""
    return [module for _, module, _, _, _ in STATIONS if module]


def _corner(column: int, row: int) -> tuple[float, float]:
    gap = (WIDTH - 40 - 5 * BOX[0]) / 4
    return 20 + column * (BOX[0] + gap), 44 + row * 134


def _box(index: int) -> str:
    name, module, words, column, row = STATIONS[index]
    x, y = _corner(column, row)
    fill, edge = ("#e6f0f8", "#0072b2") if index in BIG else ("#f6f7f9", "#8a939f")
    middle = x + BOX[0] / 2
    short = module.removeprefix("lagreach.")
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX[0]}" height="{BOX[1]}" rx="8" fill="{fill}" stroke="{edge}"/>'
        f'<text x="{middle:.0f}" y="{y + 20:.0f}" class="name">{escape(name)}</text>'
        f'<text x="{middle:.0f}" y="{y + 37:.0f}" class="module">{escape(short)}</text>'
        f'<text x="{middle:.0f}" y="{y + 54:.0f}" class="words">{escape(words)}</text>'
    )


def _arrow(start: int, end: int) -> str:
    (x0, y0), (x1, y1) = (_corner(*STATIONS[i][3:]) for i in (start, end))
    if y0 != y1:
        middle = x0 + BOX[0] / 2
        return f'<path d="M{middle:.0f} {y0 + BOX[1]:.0f} V{y1 - 3:.0f}" marker-end="url(#tip)"/>'
    y = y0 + BOX[1] / 2
    left, right = (x0 + BOX[0], x1 - 3) if x1 > x0 else (x0, x1 + BOX[0] + 3)
    return f'<path d="M{left:.0f} {y:.0f} H{right:.0f}" marker-end="url(#tip)"/>'


def _outlets() -> str:
    """One line from the diagnosis, below the last row, and up into everything that is made of it."""
    x, y = _corner(*STATIONS[10][3:])
    start, below = x + BOX[0] / 2, y + BOX[1]
    ends = [_corner(*STATIONS[i][3:])[0] + BOX[0] / 2 for i in OUTLETS]
    up = [f'<path d="M{end:.0f} {below + 24:.0f} V{below + 3:.0f}" marker-end="url(#tip)"/>' for end in ends]
    return f'<path d="M{start:.0f} {below:.0f} V{below + 24:.0f} H{ends[-1]:.0f}"/>' + "".join(up)


def svg() -> str:
    """Draw the picture."""
    rows = ("on the model's device, in chunks that fit", "small, on the CPU, in double precision", "what you keep")
    notes = [
        f'<text x="{20 if row < 2 else 110}" y="{_corner(0, row)[1] - 12:.0f}" class="note">{escape(note)}</text>'
        for row, note in enumerate(rows)
    ]
    style = (
        "text{font-family:Helvetica,Arial,sans-serif;fill:#1c2430;text-anchor:middle}.name{font-size:14px;font-weight:600}"
        ".module{font-size:11px;font-family:Menlo,Consolas,monospace;fill:#0072b2}.words{font-size:11px;fill:#4d5663}"
        ".note{font-size:12px;fill:#66707e;text-anchor:start}path{stroke:#4d5663;stroke-width:1.5;fill:none}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            "<title>From a module to a diagnosis</title>",
            f"<style>{style}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<polygon points="0 0, 8 4, 0 8" fill="#4d5663"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#ffffff"/>',
            *notes,
            *(_box(i) for i in range(len(STATIONS))),
            *(_arrow(*pair) for pair in ARROWS),
            _outlets(),
            "</svg>",
            "",
        ]
    )
