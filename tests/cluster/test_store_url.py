from __future__ import annotations

import pytest

from mcpmux.cluster.redis_store import StoreAddress, StoreUrl, Topology, parse_store_url
from mcpmux.config import Secret
from mcpmux.errors import ConfigError

ONE, SENTINEL, CLUSTER = Topology.ONE, Topology.SENTINEL, Topology.CLUSTER
H, J = StoreAddress("h", 6379), StoreAddress("i", 7000)

GOOD = [
    ("redis://h", StoreUrl(ONE, False, (H,), "", 0, None, None)),
    ("redis://h/", StoreUrl(ONE, False, (H,), "", 0, None, None)),
    ("rediss://i:7000/3", StoreUrl(ONE, True, (J,), "", 3, None, None)),
    ("redis://[::1]:7000", StoreUrl(ONE, False, (StoreAddress("::1", 7000),), "", 0, None, None)),
    ("redis://[fe80::1]", StoreUrl(ONE, False, (StoreAddress("fe80::1", 6379),), "", 0, None, None)),
    ("redis://u@h", StoreUrl(ONE, False, (H,), "", 0, "u", None)),
    ("redis://:p@h", StoreUrl(ONE, False, (H,), "", 0, None, Secret("p"))),
    ("redis://u%40x:p%3A%2Fq:r@h", StoreUrl(ONE, False, (H,), "", 0, "u@x", Secret("p:/q:r"))),
    ("redis+cluster://h,i:7000", StoreUrl(CLUSTER, False, (H, J), "", 0, None, None)),
    ("rediss+cluster://h/0", StoreUrl(CLUSTER, True, (H,), "", 0, None, None)),
    (
        "redis+sentinel://h/main",
        StoreUrl(SENTINEL, False, (StoreAddress("h", 26379),), "main", 0, None, None),
    ),
    (
        "rediss+sentinel://u:p@h:6379,i:7000/my%20main/2",
        StoreUrl(SENTINEL, True, (H, J), "my main", 2, "u", Secret("p")),
    ),
]

BAD = [
    ("http://h", "it is no URL of Redis"),
    ("redis+other://h", "it is no URL of Redis"),
    ("redis://", "it is no URL of Redis"),
    ("redis://h:0", "after :// it needs HOST:PORT"),
    ("redis://h:65536", "after :// it needs HOST:PORT"),
    ("redis://h:x", "after :// it needs HOST:PORT"),
    ("redis+cluster://h,,i", "after :// it needs HOST:PORT"),
    ("redis://h,i", "redis:// names one server; several need redis+sentinel:// or redis+cluster://"),
    ("redis://h/x", "the database at its end is a number"),
    ("redis://h/1/2", "the database at its end is a number"),
    ("redis+cluster://h/1", "a Redis Cluster has database 0 only"),
    ("redis+sentinel://h", "a URL of Sentinels needs the name of the service: …/SERVICE"),
    ("redis+sentinel://h/main/x", "the database at its end is a number"),
]


@pytest.mark.parametrize(("text", "url"), GOOD, ids=[text for text, _ in GOOD])
def test_a_url_says_where_the_store_is(text, url):
    assert parse_store_url(Secret(text)) == url


@pytest.mark.parametrize(("text", "problem"), BAD, ids=[text for text, _ in BAD])
def test_what_is_wrong_with_a_url_is_told_without_it(text, problem):
    with pytest.raises(ConfigError) as caught:
        parse_store_url(Secret(text))
    assert caught.value.problems == [f"cluster.url: {problem}"]


def test_people_see_no_password():
    url = parse_store_url(Secret("redis+sentinel://user:hidden@h:1,[::1]:2/main"))
    assert str(url) == "h:1, [::1]:2"
    assert "hidden" not in repr(url)
