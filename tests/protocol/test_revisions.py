from __future__ import annotations

import pytest

from mcpmux.protocol import revisions
from mcpmux.protocol.revisions import LEGACY, MODERN, SUPPORTED, allows_batch, is_modern, negotiate_legacy


def test_every_revision_is_supported_once_newest_first():
    assert list(SUPPORTED) == sorted({*LEGACY, *MODERN}, reverse=True)
    assert len(SUPPORTED) == 5
    assert (SUPPORTED[0], SUPPORTED[1]) == (revisions.NEWEST, revisions.NEWEST_LEGACY)


@pytest.mark.parametrize("requested", LEGACY)
def test_initialize_answers_the_legacy_revision_that_was_asked_for(requested: str):
    assert negotiate_legacy(requested) == requested


@pytest.mark.parametrize("requested", [*MODERN, "2020-01-01", "2099-01-01", ""])
def test_initialize_answers_our_newest_legacy_revision_to_anything_else(requested: str):
    """Lifecycle, 2025-11-25: otherwise the server MUST respond with another version that it supports."""
    assert negotiate_legacy(requested) == "2025-11-25"


def test_eras_do_not_overlap():
    assert [revision for revision in SUPPORTED if is_modern(revision)] == ["2026-07-28"]
    assert not is_modern("2099-01-01")


def test_batches_exist_in_one_revision_only():
    """Changelog of 2025-06-18: remove support for JSON-RPC batching."""
    assert [revision for revision in SUPPORTED if allows_batch(revision)] == ["2025-03-26"]
