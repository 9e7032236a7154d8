from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from testbed.files.fabric import FabricRecord, fabric_schema, load_fabric
from topologies import Fabric, InputError, Plane, UsageError, build_fabric

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"


def test_a_fabric_survives_its_record() -> None:
    fabric = Fabric(
        nodes=3,
        planes=(
            Plane(node_of=(0, 1, 2, 2), rate_bps=10**9, delay_ns=5, duplex=True),
            Plane(node_of=(0, 1), rate_bps=7, kind="eps", all_stop=True),
        ),
        control_ns=1,
        notify_ns=2,
        latency_ns=3,
    )
    assert FabricRecord.of(fabric).fabric("here") == fabric


def test_people_write_units_and_say_how_often(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'latency = "500ns"\n[[planes]]\nrate = "800Gbps"\ndelay = "100us"\ncount = 2\n'
        '[[planes]]\nkind = "eps"\nrate_bps = 1000\nnode_of = [0, 1]\n'
    )
    fabric = load_fabric(str(path), world=4)
    assert [plane.rate_bps for plane in fabric.planes] == [800 * 10**9] * 2 + [1000]
    assert fabric.planes[0].node_of == (0, 1, 2, 3)
    assert fabric.planes[1].delay_ns == 100_000
    assert (fabric.nodes, fabric.latency_ns, fabric.name) == (4, 500, str(path))


def test_a_spelling_is_no_file() -> None:
    assert load_fabric("rails,planes=3", world=4) == build_fabric("rails,planes=3", world=4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nodes = 4\nshape = 1\nplanes = []", "object contains unknown field `shape`"),
        ("nodes = ", "it is not TOML"),
        ("[[planes]]\nrate = '1Gbps'", "nodes is missing"),
        ("nodes = 4\n[[planes]]\ndelay = '1us'", "plane 0: rate is missing"),
        ("nodes = 4\n[[planes]]\nrate = '1 parsec'", "plane 0 rate: '1 parsec' has the unknown"),
        ("nodes = 4\n[[planes]]\nrate = '1Gbps'\nrate_bps = 1", "rate is given twice"),
        ("nodes = 4\nplanes = []", "the fabric has planes=0"),
        ("nodes = 4\n[[planes]]\nrate = '1Gbps'\nports = 3", "plane 0 has 3 ports"),
        ("nodes = 2\n[[planes]]\nrate = '1Gbps'\nnode_of = [0, 7]", "a port belongs to node 7"),
    ],
)
def test_a_bad_topology_file_gets_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        load_fabric(str(path))
    assert sentence in str(refused.value)
    assert str(refused.value).startswith(str(path))


def test_a_missing_file_and_a_wrong_spelling(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the file cannot be read"):
        load_fabric(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match="there is no topology"):
        load_fabric("donut,nodes=4")


def test_the_committed_schema_is_the_one_of_the_code() -> None:
    assert (SCHEMAS / "fabric.schema.json").read_bytes() == fabric_schema()
    fabric = build_fabric("rails,nodes=4")
    import msgspec

    record = json.loads(msgspec.json.encode(FabricRecord.of(fabric)))
    jsonschema.validate(record, json.loads(fabric_schema()))
