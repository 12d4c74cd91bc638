from __future__ import annotations

import pytest

from tests.fixtures.annotation_site import Site


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path / "store.db")
    yield site
    site.close()
