"""The cache folder returns what was written or nothing, and never fails a run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import cache


@pytest.fixture(autouse=True, scope="module")
def cache_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache.write("name", b"content")
    assert cache.read("name") is None


@given(content=st.binary(min_size=1, max_size=200), data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_cache_returns_what_was_written_or_nothing(content, data):
    cache.write("name", content)
    assert cache.read("name") == content
    assert [path.name for path in cache.folder().iterdir()] == ["name"]
    path = cache.folder() / "name"
    damaged = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    assert cache.read("name") is None
