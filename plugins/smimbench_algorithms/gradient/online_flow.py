r"""Online descent over very many steps: the flow whose map after one step is the recursion's, integrated.

With ``x_{k+1} = F(x_k)`` and the forward differences ``d x = F(x) - x``, ``d^2 x = F(F(x)) - 2 F(x) + x``, ... of the states,
the flow is the logarithm of the shift, ``x' = (d - d^2/2 + d^3/3 - ...) x``. The velocity stays in the state, so that momentum is
in F: its directions relax within ``1 / (1 - m)`` steps, for which the integrator is an implicit one. On what is linear the series
has the eigenvectors of F, hence the slow motion beside fast directions too is right to the order of the slow rates. The learning
rate of the flow at step s is that at ``s - 1/2``, whose integral is the sum over steps.

What does not follow smoothly, the first steps and those after a jump of the rate, is made one by one. The same with one term
less and larger tolerance tells the error.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.theory.types import Host
from smimbench_algorithms.gradient.online_fields import PARTS
from smimbench_algorithms.gradient.online_recursion import FEWEST_STEPS, LARGEST, Diverges, TooLong

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench_algorithms.gradient.online_recursion import Recursion

__all__ = ["follow"]

TERMS = (3, 2)
"""Terms of the series; of the rough one. The first doubled: rounding and sampling of differences undo what is gained."""

TOLERANCE = (1e-8, 1e-6)
"""Relative error of a step of the integrator; of the rough one. Doubled: twice that error, some 5% faster."""

SMALLEST = 1e-11
"""Error of a step of the integrator that is no matter at all. Doubled: errors below that are less exact."""

APART = 1e-7
"""Distance of the points of which the integrator's Jacobian is a difference. Doubled: nothing moves."""

CHECKS = 8
"""States on the way at which the flow is asked whether it is stable where steps are. Doubled: nothing moves."""

PERSISTS = 0.05
"""Rate per step up to which the decay of a deviation counts as slow. Doubled: the flow is refused for steps half as large."""

OVERSHOOT = 1e-3
"""Rate per step by which that of the flow may be off, besides half of it. Doubled: weaker instabilities pass."""

SETTLED = 50
"""Steps made one by one after a jump of the learning rate. Doubled: schedules with many jumps take up to twice as long."""

FORGOTTEN = 1e-8
"""Part of a velocity that may be left of what was before a jump. Doubled: a step or so less is made one by one."""


def follow(
    recursion: Recursion, state: Host, first: int, wanted: Sequence[int], affordable: int, rough: bool
) -> dict[int, Host]:
    """States after ``wanted`` steps that are later than ``first``.

    Parameters
    ----------
    affordable : int
        Evaluations of the recursion that may be made.

    Raises
    ------
    Diverges, TooLong
    """
    flow = _Flow(recursion, state, max(affordable, 3 * FEWEST_STEPS), rough)
    total = int(wanted[-1])
    jumps = [step for step in recursion.rule.breaks if first < step < total]
    momentum = recursion.rule.momentum
    settled = SETTLED + (int(np.log(FORGOTTEN) / np.log(momentum)) if momentum else 0)
    kept: dict[int, Host] = {}
    for begin, end in itertools.pairwise([first, *jumps, total]):
        calm = min(end, begin + settled)
        flow.spend(calm - begin)
        state, found = recursion.iterate(state, begin, calm, set(wanted))
        kept |= found
        if calm < end:
            state, found = flow.integrate(state, begin, calm, end, set(wanted))
            kept |= found
    return kept


class _Flow:
    """The flow in coordinates that are small where the error is: Gram matrices with ``W -+ W*`` in place of ``W``."""

    def __init__(self, recursion: Recursion, state: Host, affordable: int, rough: bool) -> None:
        self.recursion, self.left = recursion, float(affordable)
        self.terms, self.tolerance, self.part = TERMS[rough], TOLERANCE[rough], int(rough)
        P, R, self.lead = recursion.P, state.shape[-1], state.shape[:-2]
        rows, columns = np.tril_indices(R)
        moving = rows >= P
        self.rows, self.columns = rows[moving], columns[moving]
        self.truth = state[..., :P, :P]
        # A student of symmetric labels may have learned a component with the other sign.
        signs = np.where(np.diagonal(state[..., P : 2 * P, :P], axis1=-2, axis2=-1) < 0, -1.0, 1.0)
        self.away = np.broadcast_to(np.eye(R), state.shape).copy()
        self.away[..., range(P, 2 * P), range(P)] = -signs
        self.back = 2 * np.eye(R) - self.away

    def spend(self, steps: float) -> None:
        """Raises TooLong where more evaluations are made than may be."""
        self.left -= steps
        if self.left < 0:
            raise TooLong("integration gains nothing")

    def integrate(
        self, state: Host, begin: int, first: int, last: int, wanted: set[int]
    ) -> tuple[Host, dict[int, Host]]:
        """The state after step ``last``, and those after ``wanted`` ones; the rate is smooth from ``begin`` on."""
        from scipy.integrate import solve_ivp
        from scipy.sparse import bsr_matrix

        rule, size = self.recursion.rule, len(self.rows)

        def rate(step: float) -> float:
            return rule.rate(min(max(step - 0.5, begin), last - 1))

        def slope(step: float, flat: Host) -> Host:
            return self._packed(self._logarithm(self._unpacked(flat), rate(step)))

        def jacobian(step: float, flat: Host) -> Any:
            # Runs do not know of each other: one block each.
            blocks = self._slopes(flat, lambda state: self._logarithm(state, rate(step), rough=True))
            places = np.arange(len(blocks) + 1)
            return bsr_matrix((blocks, places[:-1], places), shape=(flat.size, flat.size)).tocsc()

        def too_large(step: float, flat: Host) -> float:
            student = np.abs(flat.reshape(-1, size)[:, self.rows < 2 * self.recursion.P])
            return float(LARGEST - np.nan_to_num(student, nan=2 * LARGEST).max())

        too_large.terminal = True  # type: ignore[attr-defined]
        times = sorted({*(step for step in wanted if first < step <= last), last})
        with np.errstate(over="ignore", invalid="ignore"):
            found = solve_ivp(
                slope, (first, last), self._packed(state), "BDF", times,
                rtol=self.tolerance, atol=SMALLEST, jac=jacobian, events=too_large,
            )  # fmt: skip
        if found.status != 0:
            raise Diverges(found.message)
        for step, flat in list(zip(found.t, found.y.T))[:: -max(1, len(times) // CHECKS)]:
            self._check_stability(flat, rate(step))
        states = {int(step): self._unpacked(flat) for step, flat in zip(found.t, found.y.T)}
        return states[last], {step: one for step, one in states.items() if step in wanted}

    def _logarithm(self, state: Host, rate: float, rough: bool = False) -> Host:
        """The series; for its higher terms, which are small, the map is known up to a constant from a part of the points.

        ``rough``: with no more than that part.
        """
        self.spend((1 - rough) + self.terms / PARTS)
        beside = self.recursion.after(state, rate, self.part)
        row = [state, beside if rough else self.recursion.after(state, rate)]
        if np.isfinite(row[1]).all():
            beside = row[1] - beside
            while len(row) <= self.terms:
                row.append(self.recursion.after(row[-1], rate, self.part) + beside)
        total = np.zeros_like(state)
        for order in range(1, len(row)):
            row = [later - earlier for earlier, later in itertools.pairwise(row)]
            total = total + (-1) ** (order + 1) / order * row[0]
        return total

    def _slopes(self, flat: Host, change: Callable[[Host], Host]) -> Host:
        """Derivatives of a change of the state, by differences: one block (size, size) for every run."""
        size = len(self.rows)
        now, columns = self._packed(change(self._unpacked(flat))), []
        for k in range(size):
            move = np.zeros((flat.size // size, size))
            move[:, k] = APART * (1 + np.abs(flat.reshape(-1, size)[:, k]))
            there = self._packed(change(self._unpacked(flat + move.ravel())))
            columns.append((there - now).reshape(-1, size) / move[:, k : k + 1])
        return np.stack(columns, axis=-1)

    def _check_stability(self, flat: Host, rate: float) -> None:
        """Raises TooLong where a deviation that lasts grows or decays otherwise by the flow than by steps: those overshoot."""
        self.spend((1 + len(self.rows)) / PARTS)
        blocks = self._slopes(flat, lambda state: self.recursion.after(state, rate, self.part) - state)
        moved = np.linalg.eigvals(blocks)
        steps = np.log(np.maximum(np.abs(1 + moved), np.exp(-2 * PERSISTS)))
        flow = sum((-1) ** (order + 1) / order * moved**order for order in range(1, self.terms + 1)).real
        lasting = np.maximum(steps, flow) > -PERSISTS
        if (lasting & (np.abs(flow - steps) > OVERSHOOT + np.abs(steps) / 2)).any():
            raise TooLong("steps overshoot")

    def _packed(self, state: Host) -> Host:
        moved = self.away @ state @ np.swapaxes(self.away, -1, -2)
        return moved[..., self.rows, self.columns].ravel()

    def _unpacked(self, flat: Host) -> Host:
        R, P = self.away.shape[-1], self.recursion.P
        state = np.zeros((*self.lead, R, R))
        each = flat.reshape(*self.lead, -1)
        state[..., self.rows, self.columns] = each
        state[..., self.columns, self.rows] = each
        state[..., :P, :P] = self.truth
        return self.back @ state @ np.swapaxes(self.back, -1, -2)
