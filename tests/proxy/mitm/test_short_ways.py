"""mitmproxy's small functions in less time: the same results."""

import copy
from collections.abc import Mapping

import pytest
from mitmproxy import http, options, optmanager

from hivemind_addon.proxy.mitm import short_ways as ours


def test_a_messages_fields_are_checked_as_mitmproxy_does_it_and_once_for_each_combination(monkeypatch):
    checked = []
    theirs = http.MessageData.__post_init__
    theirs = getattr(theirs, "theirs", theirs)
    monkeypatch.setattr(http.MessageData, "__post_init__", lambda message: (checked.append(message), theirs(message)))
    ours.check_messages_quickly()
    ours.check_messages_quickly()  # a reloaded addon
    for _ in range(3):
        http.Response.make(200, b"x")
    assert len(checked) == 1
    for _ in range(2):
        with pytest.raises(TypeError, match="status_code"):
            http.ResponseData(b"HTTP/1.1", http.Headers(), b"", None, 1.0, 1.0, status_code="200", reason=b"")
    assert len(checked) == 3


def test_lookups_have_the_same_results(monkeypatch):
    def results():
        headers = http.Headers([(b"Content-Type", b"a"), (b"x", b"1"), (b"X", b"2")])
        found = [
            headers.get("content-type"),
            headers["CONTENT-TYPE"],
            headers.get_all(b"x"),
            "y" in headers,
            len(headers),
        ]
        headers["content-type"] = "b"
        del headers["X"]
        opts = options.Options(listen_port=8081, ignore_hosts=["a"])
        names = sorted(opts.keys())
        values = [getattr(opts, name) for name in names]
        opts.ignore_hosts.append("of a copy")
        opts.mode.append("of a copy of the default")
        changed = list(filter(opts.has_changed, names))
        return found, headers.fields, values, opts.ignore_hosts, opts.mode, changed

    monkeypatch.setattr(http.Headers, "get", Mapping.get)
    monkeypatch.setattr(http.Headers, "_kconv", staticmethod(lambda key: key.lower()))
    monkeypatch.setattr(
        optmanager._Option,
        "current",
        lambda it: copy.deepcopy(it.default if it.value is optmanager.unset else it.value),
    )
    theirs = results()
    assert ours.look_up_quickly() == []
    assert results() == theirs
    assert theirs[5] == ["ignore_hosts", "listen_port"]


def test_what_has_moved_in_mitmproxy_stays_as_it_is_with_one_warning(monkeypatch, caplog):
    monkeypatch.delattr(http.MessageData, "__post_init__")
    monkeypatch.delattr(http.Headers, "_kconv")
    monkeypatch.delattr(optmanager, "_Option")
    before = vars(http.Headers).copy(), vars(http.MessageData).copy()
    ours.take_short_ways()
    assert before == (vars(http.Headers), vars(http.MessageData))
    (line,) = caplog.messages
    assert "has no Headers._kconv, _Option.current, MessageData.__post_init__ as we know it" in line
