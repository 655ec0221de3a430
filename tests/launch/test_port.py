import pytest

from hivemind_addon.launch import port


def test_inside_of_an_agent_it_is_the_one_of_its_proxy():
    assert port.chosen({port.VARIABLE: "9090"}) == 9090


@pytest.mark.parametrize("text", ["", "0", "65536", "-1", "ninety", "²"])
def test_what_is_no_port_means_the_usual_one(text):
    assert port.chosen({port.VARIABLE: text}) == port.DEFAULT
    assert port.chosen({}) == port.DEFAULT
