from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SHARED = Path(os.environ.get("FLUXBED_TRACES", REPOSITORY.parent / "shared" / "traces"))


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the shared traces are not here: set FLUXBED_TRACES")
    return SHARED


@pytest.fixture(scope="session")
def bundled() -> Path:
    directory = REPOSITORY / "examples" / "traces" / "llama-tp4-dp2"
    if not directory.is_dir():
        pytest.skip("the bundled example is not in this checkout")
    return directory
