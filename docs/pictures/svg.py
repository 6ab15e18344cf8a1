# SPDX-License-Identifier: Apache-2.0
"""Drawings as SVG that read well on light and dark pages: each stands on a card of its own colour,
which follows the reader's system."""

from __future__ import annotations

from html import escape

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  .box { fill: #eef2f7; stroke: #8c98a6 }
  .line { stroke: #57606a; fill: none; stroke-width: 1.5 }
  .head { fill: #57606a }
  .grid { stroke: #d8dee4 }
  .ours { fill: #0b7a4b }
  .theirs { fill: #8c98a6 }
  .other { fill: #b9770e }
  .wait { fill: #d8dee4 }
  text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2328 }
  .small { font-size: 11px; fill: #57606a }
  .strong { font-weight: 600 }
  .on { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22; stroke: #30363d }
    .box { fill: #21262d; stroke: #6e7681 }
    .line { stroke: #9aa4af }
    .head { fill: #9aa4af }
    .grid { stroke: #30363d }
    .ours { fill: #2ea36f }
    .theirs { fill: #6e7681 }
    .other { fill: #d29922 }
    .wait { fill: #30363d }
    text { fill: #e6edf3 }
    .small { fill: #9aa4af }
    .on { fill: #ffffff }
  }
"""


class Drawing:
    """Shapes are added in the order in which they cover each other. Sizes in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._shapes: list[str] = []
        self.box(0.5, 0.5, width - 1, height - 1, "card", round_=8)

    def box(self, x: float, y: float, width: float, height: float, kind: str,
            round_: float = 3, told: str = "") -> None:
        shape = (f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                 f'height="{height:.1f}" rx="{round_}"')
        self._shapes.append(f"{shape}><title>{escape(told)}</title></rect>" if told else
                            f"{shape}/>")

    def text(self, x: float, y: float, text: str, kind: str = "", at: str = "start") -> None:
        self._shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{at}">'
                            f"{escape(text)}</text>")

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> None:
        self._shapes.append(f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Along one axis."""
        length = abs(x2 - x1) + abs(y2 - y1)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        self.line(x1, y1, x2 - 6 * dx, y2 - 6 * dy)
        left, right = ((x2 - 9 * dx + s * 4 * dy, y2 - 9 * dy + s * 4 * dx) for s in (1, -1))
        self._shapes.append(f'<path class="head" d="M{x2:.1f} {y2:.1f}L{left[0]:.1f} {left[1]:.1f}'
                            f'L{right[0]:.1f} {right[1]:.1f}Z"/>')

    def __str__(self) -> str:
        size = f'width="{self._width}" height="{self._height}"'
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {self._width} {self._height}" role="img">',
            f"<title>{escape(self._title)}</title>", f"<style>{STYLE}</style>",
            *self._shapes, "</svg>", ""])
