"""A fabric as an SVG that needs nothing else: for documentation, papers and a browser.

Nodes are boxes side by side, planes bars above them; a line goes up from a node for every port it
has and ends in a dot on its plane. Fixed links are arcs below. Every port tells its number to a
pointer that rests on it.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from topologies.picture import headline, layout, planes_in_words
from topologies.units import format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from topologies.fabric import Fabric
    from topologies.picture import Layout

__all__ = ["svg"]

_HUES: Final = (
    "#2563eb", "#d97706", "#059669", "#c026d3", "#dc2626", "#0891b2", "#65a30d", "#7c3aed",
)  # fmt: skip
_INK, _FAINT, _PACKET, _EDGE = "#0f172a", "#64748b", "#475569", "#cbd5e1"
_LEFT: Final = 56
_RIGHT: Final = 170
_LEAST_WIDTH: Final = 680
_ALL_COLUMNS: Final = 1080  # what the columns of nodes share, if they need no more
_LEAST_PITCH, _NARROW, _MOST_PITCH = 30, 36, 88
_LINE_GAP, _DOT_GAP, _MOST_GAP = 5.5, 10, 20  # between ports: of other planes, of the same one
_BAR, _ROW = 22, 50
_HEAD: Final = 84
_LEGEND: Final = 22
_BOX: Final = 28
_GPU: Final = 7
_PER_CHARACTER: Final = 7.2  # of a legend line, on average
_STYLE: Final = f"""
.side,.tag{{stroke:#fff;stroke-width:4px;paint-order:stroke;stroke-linejoin:round}}
text{{font-family:Inter,ui-sans-serif,system-ui,'Helvetica Neue',Arial,sans-serif;fill:{_INK}}}
.name{{font-size:19px;font-weight:650}}.head{{font-size:13.5px;fill:{_FAINT}}}.word{{font-size:13px}}
.node{{font-size:11.5px;font-weight:600;text-anchor:middle}}.side{{font-size:12.5px;font-weight:600}}
.rate{{font-size:12px;fill:{_FAINT}}}.tag{{font-size:10.5px;font-weight:600}}
"""


def svg(fabric: Fabric) -> str:
    """Draw `fabric`; the result is one `<svg>` element with its styles inside.

    >>> from topologies import rails
    >>> svg(rails(nodes=8)).count("<circle")
    16
    """
    return "\n".join(_Drawing(fabric).lines())


class _Drawing:
    """The measures of one picture, in pixels, and its parts."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.place: Layout = layout(fabric)
        self.words = planes_in_words(fabric)
        self.ports = self._ports()
        most = max(map(len, self.ports.values()), default=1)
        shared = min(_MOST_PITCH, _ALL_COLUMNS / fabric.nodes)
        beside = any(len({plane for plane, _ in own}) < len(own) for own in self.ports.values())
        self.pitch = max(_LEAST_PITCH, shared, most * (_DOT_GAP if beside else _LINE_GAP) + 8)
        legend = max(len(what) for _, what in self.words) * _PER_CHARACTER + 170
        own = _LEFT + fabric.nodes * self.pitch + _RIGHT
        self.width = max(_LEAST_WIDTH, own, legend)
        self.bars = _HEAD + _LEGEND * len(self.words) + 14
        self.nodes = self.bars + _ROW * len(self.place.rows) + 4
        self.box = _BOX + self._gpu_rows() * (_GPU + 3) + (4 if fabric.gpus_per_node > 1 else 0)
        deepest = max((self._depth(a, b) for _, a, b in self.place.links), default=0)
        self.height = self.nodes + self.box + deepest / 2 + 28

    def _ports(self) -> dict[int, list[tuple[int, int]]]:
        """Return the (plane, port)s of each node, those of fixed links left out."""
        found: dict[int, list[tuple[int, int]]] = {node: [] for node in range(self.fabric.nodes)}
        for number in sorted(number for row in self.place.rows for number, _, _ in row):
            for port, node in enumerate(self.fabric.planes[number].node_of):
                found[node].append((number, port))
        return found

    def _gpu_rows(self) -> int:
        gpus = self.fabric.gpus_per_node
        across = max(1, int((self.pitch - 14) // (_GPU + 3)))
        return -(-gpus // across) if gpus > 1 else 0

    def x(self, node: int) -> float:
        """Return the middle of a node's column."""
        return _LEFT + (node + 0.5) * self.pitch

    def _port_x(self, node: int, index: int) -> float:
        count = len(self.ports[node])
        gap = min(_MOST_GAP, (self.pitch - 10) / count)
        return self.x(node) + (index - (count - 1) / 2) * gap

    def _colour(self, plane: int) -> str:
        return _PACKET if self.fabric.planes[plane].kind == "eps" else _HUES[plane % len(_HUES)]

    def _depth(self, a: int, b: int) -> float:
        return min(28 + 0.55 * (b - a) * self.pitch, 260)

    def lines(self) -> Iterator[str]:
        """Yield the elements from the back to the front."""
        size = f'width="{self.width:.0f}" height="{self.height:.0f}"'
        box = f'viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        name = escape(self.fabric.name or headline(self.fabric))
        yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} role="img">'
        yield f"<title>{name}</title>"
        yield f"<style>{_STYLE.strip()}</style>"
        yield f'<rect {size} fill="#ffffff"/>'
        yield f'<text class="name" x="24" y="38">{name}</text>'
        yield f'<text class="head" x="24" y="62">{escape(headline(self.fabric))}</text>'
        yield from self._legend()
        yield from self._wires()
        for index, row in enumerate(self.place.rows):
            yield from self._bars(row, self.bars + index * _ROW, alone=len(row) == 1)
        yield from self._dots()
        yield from self._cables()
        for node in range(self.fabric.nodes):
            yield from self._node(node)
        yield "</svg>"

    def _legend(self) -> Iterator[str]:
        for index, (numbers, what) in enumerate(self.words):
            y = _HEAD + _LEGEND * index
            for swatch, hue in enumerate(self._hues_of(numbers)):
                at = f'x="{24 + swatch * 5}" y="{y - 1}" width="12" height="12" rx="3"'
                yield f'<rect {at} fill="{hue}" stroke="#fff"/>'
            yield f'<text class="word" x="78" y="{y + 10}" font-weight="600">{numbers}</text>'
            yield f'<text class="word" x="152" y="{y + 10}">{escape(what)}</text>'

    def _hues_of(self, numbers: str) -> list[str]:
        ends = [int(number.removeprefix("p")) for number in numbers.split("-")]
        hues = [self._colour(plane) for plane in range(ends[0], ends[-1] + 1)]
        return list(dict.fromkeys(hues))

    def _row_of(self) -> dict[int, float]:
        """Return the top of each plane's bar."""
        rows = enumerate(self.place.rows)
        return {n: self.bars + index * _ROW for index, row in rows for n, _, _ in row}

    def _wires(self) -> Iterator[str]:
        top = self._row_of()
        for node, ports in self.ports.items():
            for index, (plane, _) in enumerate(ports):
                x, y = self._port_x(node, index), top[plane] + _BAR / 2
                line = f'x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{self.nodes + 4:.1f}"'
                yield f'<line {line} stroke="{self._colour(plane)}" stroke-width="1.8"/>'

    def _bars(
        self, row: tuple[tuple[int, int, int], ...], y: float, *, alone: bool
    ) -> Iterator[str]:
        for number, first, last in row:
            plane, hue = self.fabric.planes[number], self._colour(number)
            beyond = self.pitch / 2 + (4 if alone else -3)
            left, right = self.x(first) - beyond, self.x(last) + beyond
            at = f'x="{left:.1f}" y="{y:.1f}" width="{right - left:.1f}" height="{_BAR}"'
            corners = 4 if plane.kind == "eps" else _BAR // 2
            yield f'<rect {at} rx="{corners}" fill="#fff"/>'
            yield (
                f'<rect {at} rx="{corners}" fill="{hue}" fill-opacity=".13" stroke="{hue}" '
                f'stroke-width="1.4"/>'
            )
            if alone:
                middle = y + _BAR / 2 + 4.5
                rate = format_rate(plane.rate_bps)
                dark = (
                    f" · {format_duration(plane.delay_ns)}" if plane.kind == "ocs" else " packets"
                )
                side = f'x="{left - 8:.1f}" y="{middle}" text-anchor="end" style="fill:{hue}"'
                yield f'<text class="side" {side}>p{number}</text>'
                if last == self.fabric.nodes - 1:  # else lines of later nodes cross the words
                    at = f'x="{right + 10:.1f}" y="{middle}"'
                    yield f'<text class="rate" {at}>{rate}{dark}</text>'
            else:
                tag = f'x="{left + 2:.1f}" y="{y - 4:.1f}" style="fill:{hue}"'
                yield f'<text class="tag" {tag}>p{number}</text>'

    def _dots(self) -> Iterator[str]:
        top = self._row_of()
        for node, ports in self.ports.items():
            for index, (plane, port) in enumerate(ports):
                at = f'cx="{self._port_x(node, index):.1f}" cy="{top[plane] + _BAR / 2:.1f}"'
                told = f"<title>p{plane} port {port}: h{node}</title>"
                line = f'r="4" fill="#fff" stroke="{self._colour(plane)}" stroke-width="2"'
                yield f"<circle {at} {line}>{told}</circle>"

    def _cables(self) -> Iterator[str]:
        y = self.nodes + self.box
        for plane, a, b in self.place.links:
            depth = self._depth(a, b)
            left, right = self.x(a) + 5, self.x(b) - 5
            path = f"M{left:.1f} {y:.1f}C{left:.1f} {y + depth * 0.66:.1f} {right:.1f}"
            path += f" {y + depth * 0.66:.1f} {right:.1f} {y:.1f}"
            told = f"<title>p{plane}: h{a} and h{b}</title>"
            yield (
                f'<path d="{path}" fill="none" stroke="{_PACKET}" stroke-width="1.6" '
                f'stroke-opacity=".75">{told}</path>'
            )

    def _node(self, node: int) -> Iterator[str]:
        width = self.pitch - 6
        left = self.x(node) - width / 2
        at = f'x="{left:.1f}" y="{self.nodes:.1f}" width="{width:.1f}" height="{self.box}"'
        yield f'<rect {at} rx="6" fill="#f8fafc" stroke="{_EDGE}" stroke-width="1.4"/>'
        size = "" if self.pitch > _NARROW else ' style="font-size:10px"'
        at = f'x="{self.x(node):.1f}" y="{self.nodes + 18.5:.1f}"'
        yield f'<text class="node" {at}{size}>h{node}</text>'
        if (gpus := self.fabric.gpus_per_node) == 1:
            return
        across = -(-gpus // self._gpu_rows())
        inside = across * (_GPU + 3) - 3
        for gpu in range(gpus):
            row, column = divmod(gpu, across)
            x = self.x(node) - inside / 2 + column * (_GPU + 3)
            y = self.nodes + _BOX + row * (_GPU + 3)
            told = f"<title>rank {node * gpus + gpu}</title>"
            box = f'x="{x:.1f}" y="{y:.1f}" width="{_GPU}" height="{_GPU}" rx="1.5"'
            yield f'<rect {box} fill="#94a3b8">{told}</rect>'
