"""How finely the two-layer posterior is integrated: every tuning number, with what it does."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ACCURACY", "Accuracy"]


@dataclass(frozen=True)
class Accuracy:
    """Tuning numbers of the integrals over ``(a_1, b_1)``; lengths are in prior widths, weights in natural logarithms.

    Attributes
    ----------
    reach : float
        Half-width of the square that is integrated over. Doubled: the same results, about one more halving of every cell.
    near_edge : float
        A mean closer than this to the edge of the square makes the sample count as not integrated. Doubled: samples between
        5 and 6 widths from their prior mean do too, one in millions where the estimate is right.
    root_cells : int
        Cells along each axis before any is halved. Doubled: narrow peaks are harder to miss, four times the first work.
    nodes : int
        Gauss-Legendre nodes of a cell along each axis. Doubled: errors below rounding, four times the work.
    variation : float
        A cell is small enough along an axis when the log-weight varies by no more than this. Doubled: half the cells along
        each axis, errors of about 1e-3 in place of 1e-5.
    fine_variation : float
        The same for the integrals that the error estimate compares with. Doubled: 4, too close to ``variation`` to tell.
    allowance : float
        Relative increase of ``variation`` for every unit by which the logarithm of a cell's share falls short of the whole.
        Doubled: cells in the tails are larger, and count for less than they cost in accuracy.
    negligible : float
        Cells that can hold no more than exp(-negligible) of the total are left out. Doubled: exp(-32), twice the cells.
    looseness : float
        How far the upper bound of a cell may lie above what its probes saw before it is halved. Doubled: a peak seven times
        as high as what was seen may be missed.
    deepest : int
        Halvings after which a cell is used as it is. Doubled: no change, cells of relative size 2^-80 hold nothing.
    crowded : int
        Cells of one sample at one depth from which on they are not halved any more; the sample then counts as not
        integrated. Doubled: twice the memory for the few samples that come here.
    aligned : float
        Cells follow the ridge of the weight while ``V_22 / V_11`` is below this; above, the weight is broad anyway. Doubled:
        a search for the likeliest point that does not pay.
    marquardt_steps : int
        Steps of the search for the likeliest point. Doubled: the same point, in almost all samples.
    quick_width : float
        Largest ``beta^2 V_11`` at which the Gauss-Hermite rule is tried first: below, few weights have a second peak that it
        cannot see. Doubled: most trials fail and are lost time.
    quick_nodes : tuple of int
        Nodes along each axis of three such rules, in ever better frames. Doubled: a few more weights pass, four times the
        work.
    quick_tolerance : float
        Largest difference of the last two rules, in mean and square, that passes. Doubled: errors of up to 1e-3 pass.
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
        One in so many samples of ``information`` is integrated exactly. Doubled: half the time, an error larger by up to
        sqrt(2).
    crude_nodes : tuple of int
        Nodes along each axis of the two rules of the control variate. Doubled: four times its cost, hardly less variance.
    crude_variation : float
        ``variation`` of the exact integrals in ``information``. Doubled: errors of single samples near 1e-2.
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
