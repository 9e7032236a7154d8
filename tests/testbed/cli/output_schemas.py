"""Holds what a verb prints against the schema of outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import jsonschema
from referencing import Registry, Resource

ROOT: Final = Path(__file__).resolve().parents[3]
SCHEMAS: Final = [
    json.loads(path.read_text("utf-8")) for path in (ROOT / "docs/schemas").glob("*.json")
]
_REGISTRY: Final[Registry[Any]] = Registry().with_resources(
    [(schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS]
)


def conforms(kind: str, document: Any) -> None:
    """Raise `jsonschema.ValidationError` where `document` is not what `kind` prints."""
    validator = jsonschema.Draft202012Validator(
        {"$ref": f"fluxbed:output#/$defs/{kind}"}, registry=_REGISTRY
    )
    validator.validate(document)
