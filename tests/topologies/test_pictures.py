"""Pictures show every node, plane and port, exactly once, whatever the fabric."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.cli.topologies import command
from testbed.files.fabric import load_fabric
from topologies import Fabric, Plane, build_fabric
from topologies.picture import layout, text
from topologies.registry import BUILDERS
from topologies.svg import svg

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted((REPOSITORY / "examples" / "topologies").glob("*.toml"))
SVG = "{http://www.w3.org/2000/svg}"
SPECS = [
    "rails,nodes=8",
    "rails,nodes=64,planes=4",
    "single,nodes=8,ports=4",
    "servers,nodes=4,gpus=8",
    "hybrid,nodes=16",
    "rotor,nodes=33",
    "torus,nodes=16,cube=2x2x2",
    "torus,nodes=8,cube=4x1",
]


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """Any fabric: planes join whom they like."""
    nodes = draw(st.integers(2, 40))
    owners = st.lists(st.integers(0, nodes - 1), min_size=2, max_size=12)
    planes = [
        Plane(
            node_of=tuple(draw(owners)),
            rate_bps=draw(st.sampled_from([10**9, 25 * 10**9])),
            kind=draw(st.sampled_from(["ocs", "eps"])),
        )
        for _ in range(draw(st.integers(1, 6)))
    ]
    return Fabric(nodes=nodes, planes=tuple(planes), gpus_per_node=draw(st.sampled_from([1, 8])))


def elements(drawn: str, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(drawn).iter(f"{SVG}{tag}"))  # noqa: S314 (ours)


def drawn_correctly(fabric: Fabric) -> None:
    """Every port of a switch is a dot on its bar, every fixed link an arc, every node a box."""
    drawn = svg(fabric)
    place = layout(fabric)
    links = {number for number, _, _ in place.links}
    ports = Counter(
        f"p{number} port {port}: h{node}"
        for number, plane in enumerate(fabric.planes)
        for port, node in enumerate(plane.node_of)
        if number not in links
    )
    told = Counter(dot.findtext(f"{SVG}title") or "" for dot in elements(drawn, "circle"))
    assert told == ports
    assert len(elements(drawn, "path")) == len(links)
    names = [label.text for label in elements(drawn, "text") if label.get("class") == "node"]
    assert names == [f"h{node}" for node in range(fabric.nodes)]
    root = ET.fromstring(drawn)  # noqa: S314 (ours)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for dot in elements(drawn, "circle"):
        assert 0 < float(dot.get("cx", -1)) < width
        assert 0 < float(dot.get("cy", -1)) < height
    for box in elements(drawn, "rect"):
        assert float(box.get("x", 0)) >= 0
        assert float(box.get("x", 0)) + float(box.get("width", 0)) <= width + 0.5
        assert float(box.get("y", 0)) + float(box.get("height", 0)) <= height + 0.5


@pytest.mark.parametrize("spec", SPECS)
def test_a_named_fabric_is_drawn_correctly(spec: str) -> None:
    drawn_correctly(build_fabric(spec))


@settings(max_examples=50)
@given(fabric=fabrics())
def test_any_fabric_is_drawn_correctly(fabric: Fabric) -> None:
    drawn_correctly(fabric)


@given(fabric=fabrics())
def test_planes_in_one_row_share_no_column(fabric: Fabric) -> None:
    place = layout(fabric)
    for row in place.rows:
        assert all(a[2] < b[1] for a, b in itertools.pairwise(row))
    numbers = [s[0] for row in place.rows for s in row] + [link[0] for link in place.links]
    assert sorted(numbers) == list(range(len(fabric.planes)))


@settings(max_examples=50)
@given(fabric=fabrics())
def test_the_text_shows_every_port(fabric: Fabric) -> None:
    links = {number for number, _, _ in layout(fabric).links}
    owned = [
        count
        for number, plane in enumerate(fabric.planes)
        if number not in links
        for count in Counter(plane.node_of).values()
    ]
    rows = [line for line in text(fabric).splitlines() if "─" in line or "═" in line]
    cells = [line.split("  ", 2)[-1] for line in rows if not line.lstrip().startswith("h")]
    assert sum(cell.count("●") for cell in cells) == owned.count(1)
    assert all(len(line) <= 100 for line in text(fabric).splitlines())


def test_the_picture_of_a_torus() -> None:
    assert text(build_fabric("torus,nodes=8,cube=4x1,delay=1ms")) == TORUS.strip("\n")


TORUS = """
torus,nodes=8,cube=4x1,delay=1ms
8 nodes on 11 planes

  p0-p4   optical, 4 ports of 800 Gbps, dark 1 ms, duplex circuits
  p5-p10  fixed link, 800 Gbps each way

  p0  ──●───────────●───●───────────●─
  p1  ──2───────────────2─
  p2      ──2───────────────2─
  p3          ──2───────────────2─
  p4              ──2───────────────2─
       h0  h1  h2  h3  h4  h5  h6  h7

  fixed links
  h0─h1  h1─h2  h2─h3  h4─h5  h5─h6  h6─h7
"""


def test_a_name_cannot_break_the_svg() -> None:
    fabric = Fabric(
        nodes=2, planes=(Plane(node_of=(0, 1), rate_bps=1),), name='<script>"&</script>'
    )
    assert ET.fromstring(svg(fabric)).findtext(f"{SVG}title") == fabric.name  # noqa: S314 (ours)


def test_the_verb_lists_and_shows() -> None:
    run = CliRunner().invoke
    listed = run(command, []).output.splitlines()
    assert [line.split()[0] for line in listed] == ["topology", *BUILDERS]
    shown = run(command, ["show", "hybrid,planes=1", "--ranks", "4"])
    assert shown.output == text(build_fabric("hybrid,planes=1", 4)) + "\n"
    drawn = run(command, ["show", "rails,nodes=8", "--format", "svg"])
    assert drawn.output == svg(build_fabric("rails,nodes=8")) + "\n"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_file_is_a_fabric_and_fits_the_schema(path: Path) -> None:
    import json
    import tomllib

    schema = json.loads((REPOSITORY / "docs/schemas/fabric.schema.json").read_text("utf-8"))
    jsonschema.validate(tomllib.loads(path.read_text("utf-8")), schema)
    fabric = load_fabric(str(path), world=8)
    drawn_correctly(fabric)
    for number, plane in enumerate(fabric.planes):
        assert sum(len(fabric.ports_of(number, n)) for n in range(fabric.nodes)) == plane.ports


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} == {"hybrid", "pods", "servers"}
    servers = load_fabric(str(REPOSITORY / "examples/topologies/servers.toml"))
    assert (servers.gpus_per_node, servers.scale_up_bps) == (8, 3600 * 10**9)
