from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.share import SETTING, Share, client_of
from mcpmux.protocol.codes import Busy
from mcpmux.protocol.principal import ANYONE, Principal


@given(st.integers(1, 4), st.lists(st.sampled_from("abc")))
def test_a_client_has_at_most_its_share_whatever_others_have(most: int, comers: list[str]):
    share = Share(most)
    had: list[str] = []
    with ExitStack() as streams:
        for comer in comers:
            if had.count(comer) < most:
                streams.enter_context(share.counted(comer))
                had.append(comer)
            else:
                with pytest.raises(Busy, match=f"this client has {most} streams") as refused:
                    streams.enter_context(share.counted(comer))
                assert (refused.value.status, refused.value.data["limit"]) == (429, SETTING)
    assert repr(share) == "<Share 0 streams of 0 clients>"


def test_a_client_is_its_principal_in_any_view_and_else_its_address():
    assert client_of(Principal("ann", view="coding"), "10.0.0.1") == client_of(Principal("ann"), "10.0.0.2")
    assert client_of(ANYONE, "10.0.0.1") != client_of(ANYONE, "10.0.0.2")
    assert client_of(ANYONE, "ann") != client_of(Principal("ann"), "")
