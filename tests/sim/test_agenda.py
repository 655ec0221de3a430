import math

from hivemind_addon.lab.sim.agenda import Agenda


def test_deeds_are_done_at_their_instants_and_those_of_one_instant_in_the_order_in_which_they_were_put_down():
    agenda, done = Agenda(), []
    agenda.at(2.0, done.append, "second")
    agenda.after(2.0, done.append, "third")
    agenda.at(1.0, done.append, "first")
    while agenda.first_at < math.inf:
        agenda.now = agenda.first_at
        agenda.do_first_due()
    assert done == ["first", "second", "third"]
    assert agenda.now == 2.0


def test_nothing_is_done_before_it_is_due():
    agenda, done = Agenda(), []
    agenda.after(5.0, done.append, "later")
    agenda.now = 4.9
    agenda.do_first_due()
    assert done == []
    agenda.now = 5.0
    agenda.do_first_due()
    agenda.do_first_due()
    assert done == ["later"]


def test_what_should_have_been_done_before_is_due_now():
    agenda = Agenda()
    agenda.now = 7.0
    agenda.at(3.0, print)
    assert agenda.first_at == 7.0


def test_a_delay_counts_from_now():
    agenda = Agenda()
    agenda.now = 7.0
    agenda.after(3.0, print)
    assert agenda.first_at == 10.0
