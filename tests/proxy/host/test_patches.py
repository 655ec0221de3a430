"""mitmproxy's small functions in less time: the same results."""

import copy
import importlib.util
import logging
from collections.abc import Mapping

import hpack
import pytest
from h2 import utilities
from h2.exceptions import ProtocolError
from hpack.table import HeaderTable
from mitmproxy import exceptions, http, options, optmanager
from mitmproxy.coretypes import multidict

from hivemind_addon.proxy.host import patches as ours


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


FIELDS = [
    [],
    [(b"Content-Type", b"a"), (b"x", b"1"), (b"X", b"2")],
    [(b"Content-Length", b"7"), (b"Host", b"a"), (b"\xc3\x89", b"\xff"), (b"\xe9", b"")],
    [(b"x", b"")],
]
NAMES = ["content-type", "Content-Type", b"CONTENT-TYPE", "x", b"X", "y", "host", "É", b"\xc3\x89", "\udce9", "é", ""]


def theirs_and_ours(monkeypatch, results):
    """The same asked of mitmproxy's own headers, and of the quick ones."""
    quick = {name: vars(http.Headers).get(name) for name in ours._LOOKUPS}
    own = {
        "get": Mapping.get,
        "__contains__": Mapping.__contains__,
        "__getitem__": multidict.MultiDict.__getitem__,
        "set_all": lambda headers, name, values: multidict.MultiDict.set_all(
            headers, http._always_bytes(name), [http._always_bytes(value) for value in values]
        ),
        "__bytes__": lambda headers: b"".join(b"%b: %b\r\n" % field for field in headers.fields),
        "_kconv": staticmethod(lambda key: key.lower()),
    }
    for name, function in own.items():
        monkeypatch.setattr(http.Headers, name, function)
    theirs = results()
    assert ours.look_up_quickly() == []
    mine = results()
    assert {name: vars(http.Headers)[name] for name in quick} == ours._LOOKUPS
    return theirs, mine


@pytest.mark.parametrize("fields", FIELDS)
def test_headers_are_found_as_mitmproxy_finds_them(monkeypatch, fields):
    def results():
        told = []
        for name in NAMES:
            headers = http.Headers(fields)
            told += [headers.get(name), headers.get(name, "-"), name in headers, headers.get_all(name), len(headers)]
            try:
                told.append(headers[name])
            except KeyError as error:
                told.append(str(error))
            for values in (["new"], [b"b", "c"], []):
                headers = http.Headers(fields)
                headers.set_all(name, values)
                told += [headers.fields, bytes(headers)]
            headers[name] = "é"
            told += [headers.fields, headers.pop(name), headers.fields, name in headers]
        return told

    theirs, mine = theirs_and_ours(monkeypatch, results)
    assert mine == theirs


def test_headers_that_change_are_looked_through_anew(monkeypatch):
    def results():
        headers = http.Headers([(b"a", b"1")])
        told = [headers.get("a"), headers.get("b")]
        headers.fields = [(b"a", b"2")]  # as some addon may
        told.append(headers.get("a"))
        headers.fields.append((b"b", b"3"))
        told += [headers.get("b"), headers.copy().get("b")]
        return told

    theirs, mine = theirs_and_ours(monkeypatch, results)
    assert mine == theirs == ["1", None, "2", "3", "3"]


def test_an_options_value_is_looked_up_once_until_one_changes(monkeypatch):
    asked = []
    theirs = options.Options.__getattr__
    monkeypatch.setattr(
        optmanager.OptManager, "__getattr__", lambda it, name: (asked.append(name), theirs(it, name))[1]
    )
    known = options.Options(ignore_hosts=["a"])
    heard = []

    def hear(updated):
        heard.append((known.http2, known.websocket))
        if known.http2 is known.websocket is False:
            raise exceptions.OptionsError("not both")

    known.changed.connect(hear)
    assert ours.remember_options(known) == []
    assert ours.remember_options(known) == []  # a reloaded addon
    assert [known.http2 for _ in range(3)] == [True] * 3
    assert asked.count("http2") == 1
    known.ignore_hosts.append("of a copy")
    assert known.ignore_hosts == ["a"]
    known.http2 = False
    assert not known.http2
    assert heard.pop() == (False, True)
    with pytest.raises(exceptions.OptionsError):
        known.websocket = False
    assert heard == [(False, False), (False, True)]  # as it was before
    assert known.websocket
    known.reset()
    assert known.http2
    known.add_option("of_an_addon", int, 1, "")
    assert known.of_an_addon == 1
    known.update(of_an_addon=2)
    assert known.of_an_addon == 2
    with pytest.raises(AttributeError, match="No such option: unknown"):
        _ = known.unknown
    assert copy.deepcopy(known) == known


def test_what_has_moved_in_mitmproxy_stays_as_it_is_with_one_warning(monkeypatch, caplog):
    monkeypatch.delattr(http.MessageData, "__post_init__")
    monkeypatch.delattr(http.Headers, "_kconv")
    known = options.Options()
    monkeypatch.setattr(known.changed, "receivers", ())
    before = vars(http.Headers).copy(), vars(http.MessageData).copy()
    ours.take_short_ways(known)
    assert before == (vars(http.Headers), vars(http.MessageData))
    moved = [
        "Headers._kconv",
        "Options.changed",
        "MessageData.__post_init__",
    ]
    (line,) = caplog.messages
    assert f"has no {', '.join(moved)} as we know it" in line


CHARACTERS = [bytes([code]) for code in range(256)]
NAMES_OF_2 = [b"", b":path", b"a:b", b":a:b", b"x-y", *CHARACTERS, *(b"a" + one + b"b" for one in CHARACTERS)]
VALUES_OF_2 = [b"", b" ", b"a b", b"  a", b"a\t", *CHARACTERS, *(b"a" + one + b"b" for one in CHARACTERS)]


def test_http2_finds_the_same_fields_legal_and_says_the_same_of_others():
    ours.code_heads_quickly()
    ours.code_heads_quickly()  # a reloaded addon
    check = utilities._reject_illegal_characters
    assert not hasattr(check.theirs, "theirs")

    def said(function, field):
        try:
            return list(function([(b"fine", b"too"), field], None))
        except ProtocolError as error:
            return str(error)

    fields = [(name, b"v") for name in NAMES_OF_2] + [(b"n", value) for value in VALUES_OF_2]
    assert [said(check, field) for field in fields] == [said(check.theirs, field) for field in fields]
    assert sum(isinstance(said(check, field), str) for field in fields) > 300


def test_hpack_finds_a_field_where_it_did(monkeypatch):
    fields = [(b":method", b"POST"), (b":method", b"PUT"), (b"x", b"1"), (b"x", b"2"), (b"y", b""), (b"date", b"1")]
    fields += [(b"date", b"2"), (b"x", b"1"), (b"z", b"3")]

    def found():
        table, places = HeaderTable(), []
        for field in fields:
            places += [table.search(*one) for one in fields]
            table.add(*field)
        return places

    quick = found()
    theirs = importlib.util.module_from_spec(importlib.util.find_spec("hpack.table"))
    theirs.__spec__.loader.exec_module(theirs)
    monkeypatch.setattr(HeaderTable, "search", theirs.HeaderTable.search)
    assert found() == quick
    assert len(set(quick)) > 10


def test_a_head_of_http2_is_written_and_read_without_words_for_a_log(caplog):
    ours.code_heads_quickly()
    caplog.set_level(logging.DEBUG)
    fields = [(b":path", b"/v1"), (b"x-key", b"secret")]
    assert hpack.Decoder().decode(hpack.Encoder().encode(fields), raw=True) == fields
    assert "secret" not in caplog.text
