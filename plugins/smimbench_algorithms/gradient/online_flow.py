r"""Online descent over very many steps: the flow whose map after one step is the recursion's, integrated.

With ``x_{k+1} = F(x_k)`` and the forward differences ``d x = F(x) - x``, ``d^2 x = F(F(x)) - 2 F(x) + x``, ... of the states,
the flow is the logarithm of the shift, ``x' = (d - d^2/2 + d^3/3 - ...) x``. The velocity stays in the state, so that momentum is
in F: its directions relax within ``1 / (1 - m)`` steps, for which the integrator is an implicit one. On what is linear the series
has the eigenvectors of F, hence slow motion is right, next to fast directions too, to the order of the slow rates. The learning
rate of the flow at step s is that at ``s - 1/2``, whose integral is the sum over steps.

What does not follow smoothly, the first steps and those after a jump of the rate, is made one by one. The same with one term
less and larger tolerance tells the error.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.theory import Host
from smimbench_algorithms.gradient import online
from smimbench_algorithms.gradient.online import LARGEST, Diverges, TooLong

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench_algorithms.gradient.online import Recursion

__all__ = ["follow"]


def follow(
    recursion: Recursion, state: Host, first: int, wanted: Sequence[int], affordable: int, rough: bool
) -> dict[int, Host]:
    """States after ``wanted`` steps that are later than ``first``.

    Parameters
    ----------
    affordable : int
        Most evaluations of the recursion.

    Raises
    ------
    Diverges, TooLong
    """
    flow = _Flow(recursion, state, max(affordable, 3 * online.ACCURACY.fewest_steps), rough)
    total = int(wanted[-1])
    jumps = [step for step in recursion.rule.breaks if first < step < total]
    momentum = recursion.rule.momentum
    # After a jump of the rate: until 1e-8 is left of the velocity before.
    settled = 50 + (int(np.log(1e-8) / np.log(momentum)) if momentum else 0)
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
        self.terms, self.tolerance = online.ACCURACY.terms[rough], online.ACCURACY.tolerance[rough]
        self.part = int(rough)
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
        """Count evaluations; raise TooLong where there are more than allowed."""
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
                rtol=self.tolerance, atol=1e-11, jac=jacobian, events=too_large,
            )  # fmt: skip
        if found.status != 0:
            raise Diverges(found.message)
        for step, flat in list(zip(found.t, found.y.T))[:: -max(1, len(times) // 8)]:
            self._check_stability(flat, rate(step))
        states = {int(step): self._unpacked(flat) for step, flat in zip(found.t, found.y.T)}
        return states[last], {step: one for step, one in states.items() if step in wanted}

    def _logarithm(self, state: Host, rate: float, rough: bool = False) -> Host:
        """The series; its higher terms, which are small, use the map of one part of the points, up to a constant.

        ``rough``: that part only.
        """
        self.spend((1 - rough) + self.terms / online.ACCURACY.parts)
        partial = self.recursion.after(state, rate, self.part)
        row = [state, partial if rough else self.recursion.after(state, rate)]
        if np.isfinite(row[1]).all():
            partial = row[1] - partial
            while len(row) <= self.terms:
                row.append(self.recursion.after(row[-1], rate, self.part) + partial)
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
            move[:, k] = 1e-7 * (1 + np.abs(flat.reshape(-1, size)[:, k]))
            there = self._packed(change(self._unpacked(flat + move.ravel())))
            columns.append((there - now).reshape(-1, size) / move[:, k : k + 1])
        return np.stack(columns, axis=-1)

    def _check_stability(self, flat: Host, rate: float) -> None:
        """Raise TooLong where a slow deviation grows or decays at another rate in the flow than by steps: those overshoot."""
        self.spend((1 + len(self.rows)) / online.ACCURACY.parts)
        blocks = self._slopes(flat, lambda state: self.recursion.after(state, rate, self.part) - state)
        moved = np.linalg.eigvals(blocks)
        slow = 0.05  # rate per step up to which the decay of a deviation matters
        steps = np.log(np.maximum(np.abs(1 + moved), np.exp(-2 * slow)))
        flow = sum((-1) ** (order + 1) / order * moved**order for order in range(1, self.terms + 1)).real
        lasting = np.maximum(steps, flow) > -slow
        if (lasting & (np.abs(flow - steps) > 1e-3 + np.abs(steps) / 2)).any():
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
