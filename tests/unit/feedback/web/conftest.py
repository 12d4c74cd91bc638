from __future__ import annotations

from tests.fixtures.annotation_site import site as site
