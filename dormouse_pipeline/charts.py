"""Small inline charts for the UI: a line chart as SVG in a data URI, a few kilobytes, no plotting library."""

import base64
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 520, 160, 34
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#7f7f7f")


def line_chart(title: str, x_N: Sequence[float], series: Mapping[str, Sequence[float | None]]) -> str:
    """Markdown with one chart: every series over x. None leaves a gap. Empty where there is nothing to draw."""
    values = [v for row in series.values() for v in row if v is not None]
    if len(x_N) < 2 or not values:
        return ""
    low, high = min(values), max(values)
    high = high if high > low else low + 1.0
    first, last = min(x_N), max(x_N)
    last = last if last > first else first + 1.0

    def place(x: float, y: float) -> str:
        across = MARGIN + (x - first) / (last - first) * (WIDTH - MARGIN - 8)
        return f"{across:.1f},{HEIGHT - 22 - (y - low) / (high - low) * (HEIGHT - 44):.1f}"

    marks = []
    for number, (name, row) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        runs: list[list[str]] = [[]]
        for x, y in zip(x_N, row, strict=True):
            if y is None:
                runs.append([])
            else:
                runs[-1].append(place(x, y))
        marks += [f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(run)}"/>' for run in runs if run]
        marks.append(f'<text x="{MARGIN + 90 * number}" y="{HEIGHT - 4}" fill="{colour}">{escape(name)}</text>')
    axis = f'<text x="2" y="26">{high:.3g}</text><text x="2" y="{HEIGHT - 24}">{low:.3g}</text>'
    svg = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="10">'
           f'<text x="{MARGIN}" y="11" font-weight="bold">{escape(title)}</text>{axis}{"".join(marks)}</svg>')
    return f"![{title}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"
