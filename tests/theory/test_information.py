"""The memory of nodes: handed in with its disk and its clock, asked once for every overlap, and watched."""

import numpy as np
from numpy.testing import assert_array_equal

from smimbench.interfaces import Uncertain
from smimbench.theory.information import Nodes, information_at, nodes_of
from tests.theory.test_coupled import NOISES, Mixed, Problem

Q, V = 0.3 * np.eye(2), 0.7 * np.eye(2)


def test_nodes_are_read_from_what_was_handed_in_and_evaluated_as_it_says():
    problem, evaluated, reads = Problem(Mixed(NOISES[1]), 2, 2), [], []
    key = Nodes.key("information", Q, V)
    stored = Uncertain(np.full((2, 2), 7.0), np.zeros((2, 2)), "stored")

    def read():
        reads.append(1)
        return {key: stored}

    def evaluate(name, work):
        evaluated.append(name)
        return work(), len(evaluated) > 1

    nodes = nodes_of(problem, lambda: Nodes(read, evaluate))
    assert not reads  # nobody has asked yet
    assert information_at(problem, Q, V).method == "stored"
    assert not evaluated
    exact = Mixed(NOISES[1]).information(2 * Q, V - Q).value
    for _ in range(3):  # not worth remembering at first, then it is
        assert_array_equal(information_at(problem, 2 * Q, V - Q).value, exact)
    assert len(evaluated) == 2
    assert len(reads) == 1
    assert nodes.count == 3


def test_only_the_first_memory_counts_and_who_watches_is_told():
    problem, told = Problem(Mixed(NOISES[0]), 2, 2), []
    nodes = nodes_of(problem)
    assert nodes_of(problem, lambda: Nodes(dict)) is nodes
    with nodes.watched(lambda count, alpha: told.append((count, alpha))):
        information_at(problem, Q, V)
        nodes.reached(0.4)
        information_at(problem, Q, V)
    information_at(problem, Q, V)
    assert told == [(1, None), (1, 0.4), (2, 0.4)]
