"""Messages by the real Apprise, to servers on this machine."""

import asyncio
import json
import os
import socketserver
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hivemind_addon.kernel.values.events import AccountBlocked, AccountUnblocked
from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.proxy.record.notice import Notice
from hivemind_addon.proxy.run import alerts as alerting
from hivemind_addon.proxy.run.alerts import Alerts
from hivemind_addon.proxy.run.notifier import Notifier

NOTICE = Notice("account block", "began", "host.test/key-1/m: the account is refused", "host.test/key-1/m", 1.0, None)
SECRET = "open-sesame"


class Service(BaseHTTPRequestHandler):
    """Takes messages, or refuses them."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((self.path, self.headers, body))
        self.server.may_answer.wait(120)
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def service():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.got, server.status, server.may_answer = [], 200, threading.Event()
    server.may_answer.set()
    with serving(server):
        yield server
        server.may_answer.set()


def to(service, scheme="json", path=SECRET):
    return f"{scheme}://{f'user:{SECRET}@' if scheme == 'json' else ''}127.0.0.1:{service.server_port}/{path}"


async def finish(made):
    async with asyncio.timeout(120):
        while made._calls:
            await asyncio.wait(made._calls)


def blocked(clock, number=1):
    pool = PoolKey("host.test", f"key-{number}", "m")
    return AccountBlocked(at=clock.monotonic(), pool=pool, until=clock.monotonic() + 3600, reason="429")


async def test_a_message_says_what_is_wrong(service):
    assert await Alerts([to(service), to(service, "ntfy", "topic")]).call([NOTICE]) == []
    by_path = {path: json.loads(body) for path, _, body in service.got}
    assert (
        by_path[f"/{SECRET}"] | {"title": "hivemind: account block", "message": NOTICE.text, "type": "failure"}
        == (by_path[f"/{SECRET}"])
    )
    assert (by_path["/"]["topic"], by_path["/"]["message"]) == ("topic", NOTICE.text)


async def test_a_storm_is_one_message_and_the_next_is_a_minute_later(service, clock):
    made = Notifier(Alerts([to(service)]), clock=clock)
    for number in range(30):
        made(blocked(clock, number))
    assert not made._calls, "others are waited for"
    clock.advance(Alerts.gather_s)
    made.tick()
    await finish(made)
    made(AccountUnblocked(at=clock.monotonic(), pool=PoolKey("host.test", "key-1", "m")))
    clock.advance(Alerts.rest_s - 1)
    made.tick()
    assert not made._calls
    clock.advance(1)
    made.tick()
    await finish(made)
    first, second = (json.loads(body) for _, _, body in service.got)
    assert first["title"] == "hivemind: 30 alerts"
    assert first["message"].splitlines()[-1] == "… and 20 more"
    assert (second["title"], second["type"]) == ("hivemind: account block", "success")
    await made.close()


async def test_what_was_gathered_is_sent_before_the_proxy_ends(service, clock):
    made = Notifier(Alerts([to(service)]), clock=clock)
    made(blocked(clock))
    await made.close()
    assert len(service.got) == 1


async def test_a_failure_is_said_once_with_its_reason_and_no_secret_and_its_end_too(service, caplog):
    alerts = Alerts([to(service)])
    service.status = 403
    (said,) = await alerts.call([NOTICE])
    assert said.startswith("calls for help do not reach address 1 (JSON): ")
    assert "403" in said
    assert await alerts.call([NOTICE]) == []
    service.status = 200
    assert await alerts.call([NOTICE]) == ["calls for help reach address 1 (JSON) again"]
    (said,) = await Alerts([f"json://user:{SECRET}@127.0.0.1:1/{SECRET}"]).call([NOTICE])
    assert SECRET not in said + caplog.text + repr(alerts)


async def test_a_service_that_hangs_is_waited_for_in_bounds_and_not_called_again_meanwhile(service, monkeypatch):
    monkeypatch.setattr(alerting, "TIMEOUT_S", 0.05)
    service.may_answer.clear()
    alerts = Alerts([f"{to(service)}?rto=100"])
    assert (await alerts.send([NOTICE]))[0][1] == "no answer within 0 s"
    monkeypatch.setattr(alerting, "TIMEOUT_S", 120.0)
    assert (await alerts.send([NOTICE]))[0][1] == "it is still at the message before"
    service.may_answer.set()
    async with asyncio.timeout(120):
        while alerts.addresses[0]._is_sending:
            await asyncio.to_thread(os.sched_yield)
    assert (await alerts.send([NOTICE]))[0][1] == ""


class Mailbox(socketserver.StreamRequestHandler):
    """As little of SMTP as a mail needs."""

    def handle(self):
        self.say("220 mail.test")
        while line := self.rfile.readline().decode().strip():
            match line.split()[0].upper():
                case "EHLO" | "HELO":
                    self.say("250 mail.test")
                case "DATA":
                    self.say("354 go on")
                    lines = iter(self.rfile.readline, b".\r\n")
                    self.server.got.append(b"".join(lines).decode())
                    self.say("250 taken")
                case "QUIT":
                    self.say("221 bye")
                    return
                case _:
                    self.say("250 fine")

    def say(self, line):
        self.wfile.write(f"{line}\r\n".encode())


async def test_a_mail_goes_to_a_mail_server():
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox)
    server.daemon_threads, server.got = True, []
    with serving(server):
        url = f"mailto://127.0.0.1:{server.server_address[1]}?from=hivemind@mail.test&to=me@mail.test&mode=insecure"
        assert await Alerts([url]).call([NOTICE]) == []
    (mail,) = server.got
    assert "To: me@mail.test" in mail
    assert "Subject: hivemind: account block" in mail
