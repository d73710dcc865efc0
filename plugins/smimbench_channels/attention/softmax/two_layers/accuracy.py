"""How finely the two-layer posterior is integrated: every tuning number, with what it does."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ACCURACY", "Accuracy"]


@dataclass(frozen=True)
class Accuracy:
    """Tuning numbers of the integrals over ``(a_1, b_1)``.

    Lengths and errors are in prior widths, weights in natural logarithms. As it is, posterior means are off by 3e-5 (root mean
    square over samples at beta = 1, c = 1); what happens when a number is doubled was measured there.

    Attributes
    ----------
    reach : float
        Half-width of the square that is integrated over. Doubled: the first cells are twice as wide, errors up to 1e-4.
    near_edge : float
        A mean closer than this to the edge of the square makes the sample count as not integrated. Doubled: samples 4.5 widths
        from their prior mean do too.
    root_cells : int
        Cells along each axis before any is halved. Doubled: the same errors, four times the first work.
    nodes : int
        Gauss-Legendre nodes of a cell along each axis. Doubled: errors of 3e-8, twice the time.
    variation : float
        A cell is small enough along an axis when the log-weight varies by no more than this. Doubled: errors of 3e-3, 60% of
        the time.
    fine_variation : float
        The same for the integrals that the error estimate compares with. Doubled: too close to ``variation`` to tell.
    allowance : float
        Relative increase of ``variation`` for every unit by which the logarithm of a cell's share falls short of the whole.
        Doubled: errors of 6e-5, 85% of the time.
    negligible : float
        Cells that can hold no more than exp(-negligible) of the total are left out. Doubled: the same errors, 1.7 times the
        time.
    looseness : float
        How far the upper bound of a cell may lie above what its probes saw before it is halved. Doubled: 90% of the time; a
        narrow peak may be missed.
    deepest : int
        Halvings after which a cell is used as it is. Doubled: no change, cells of relative size 2^-40 hold nothing.
    crowded : int
        Cells of one sample at one depth from which on they are not halved any more; the sample then counts as not
        integrated. Doubled: twice the memory for the few samples that come here.
    aligned : float
        Cells follow the ridge of the weight while ``V_22 / V_11`` is below this; above, the weight is broad. Doubled: no
        change of errors or time.
    marquardt_steps : int
        Steps of the search for the likeliest point. Doubled: the same errors, the search takes twice as long.
    quick_width : float
        Largest ``beta^2 V_11`` at which the Gauss-Hermite rule is tried first: below, few weights have a second peak that it
        cannot see. Doubled: the same errors, more trials that fail.
    quick_nodes : tuple of int
        Nodes along each axis of three such rules, in ever better frames. Doubled: errors of 2e-6 where the rule serves, four
        times its work.
    quick_tolerance : float
        Largest difference of the last two rules, in mean and square, that passes. Doubled: twice the errors where it serves.
    unlikely : float
        Largest -2 log-weight of the likeliest point at which the quick rule is trusted. Doubled: labels that the prior
        hardly allows are trusted to it.
    probed, probes : int
        Every ``probed``-th sample, and no fewer than ``probes``, is integrated again for the error estimate. Doubled
        ``probed``: half of the cost, a noisier estimate.
    block, block_device : int
        Samples integrated at once, on a host (some dozens of cells each should stay in the cache) and on a device. Doubled:
        twice the memory.
    scrambles : int
        Independent scrambles of the Sobol points of ``information``, whose spread is the error. Doubled: the error is known
        to 1/8 of itself in place of 1/5, and shrinks less fast with the samples.
    correction_share : int
        One in so many samples of ``information`` is integrated exactly. Doubled: about half the time, an error larger by up
        to sqrt(2).
    crude_nodes : tuple of int
        Nodes along each axis of the two rules of the control variate. Doubled: four times its cost.
    crude_variation : float
        ``variation`` of the exact integrals in ``information``. Doubled: single samples are wrong by more than 1e-2.
    crude_block : int
        Samples at once for the control variate. Doubled: twice the memory.
    crude_limit : float
        Beyond this many prior widths a crude mean is taken for lost and cut. Doubled: rare outliers widen the error.
    """

    reach: float = 7.5
    near_edge: float = 1.5
    root_cells: int = 4
    nodes: int = 8
    variation: float = 6.0
    fine_variation: float = 2.0
    allowance: float = 0.3
    negligible: float = 16.0
    looseness: float = 2.0
    deepest: int = 80
    crowded: int = 1 << 11
    aligned: float = 0.1
    marquardt_steps: int = 12
    quick_width: float = 0.2
    quick_nodes: tuple[int, int, int] = (12, 16, 20)
    quick_tolerance: float = 5e-4
    unlikely: float = 40.0
    probed: int = 64
    probes: int = 16
    block: int = 128
    block_device: int = 1 << 14
    scrambles: int = 16
    correction_share: int = 32
    crude_nodes: tuple[int, int] = (8, 10)
    crude_variation: float = 8.0
    crude_block: int = 512
    crude_limit: float = 4.0


ACCURACY = Accuracy()
"""What the channel uses."""
