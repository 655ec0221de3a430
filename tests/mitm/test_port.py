"""The two sides of the seam agree: what the layer calls is what the exchange and the intake have."""

import inspect
from dataclasses import fields

import pytest

from hivemind_addon.proxy.mitm.exchange import Exchange
from hivemind_addon.proxy.mitm.intake import Intake
from hivemind_addon.proxy.mitm.port import ExchangePort, Port
from tests.mitm.samples import make_intake


def methods(protocol):
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")]


@pytest.mark.parametrize(
    ("protocol", "implementation", "name"),
    [
        (protocol, implementation, name)
        for protocol, implementation in ((ExchangePort, Exchange), (Port, Intake))
        for name in methods(protocol)
    ],
)
def test_every_method_takes_what_the_protocol_says(protocol, implementation, name):
    promised, real = (inspect.signature(getattr(owner, name)) for owner in (protocol, implementation))
    assert [(one.name, one.kind) for one in promised.parameters.values()] == [
        (one.name, one.kind) for one in real.parameters.values()
    ]


async def test_every_attribute_is_there():
    assert set(ExchangePort.__annotations__) <= {field.name for field in fields(Exchange)}
    intake = make_intake()
    assert all(hasattr(intake, name) for name in Port.__annotations__)
