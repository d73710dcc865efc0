"""How finely the tables of the last layer are made, and over how many labels their posteriors are averaged."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ACCURACY", "Accuracy"]


@dataclass(frozen=True)
class Accuracy:
    """Resolution of tables and means; lengths are in units of the width that is named.

    Parameters
    ----------
    step, blind_step : float
        Spacing of the nodes in ``log(1 + x)`` over the relative width of the Gaussian factors; the second one where the last
        layer is unknown. Doubled: a quarter of the table where V is small (more nodes than the fewest), and
        changes of 5e-4.
    fewest_nodes, most_nodes : int
        Bounds of the number of nodes along each axis. Doubling the first: changes of 3e-7. Doubling the second: larger tables
        where V is below 1e-4.
    farthest : tuple of float
        Largest x and y of a table for 1, 2 and at least 3 layers before the last. Without a skip connection they are unbounded,
        the more so the more layers: what lies beyond is moved to here, and counted as an error. Doubled (not measured): a
        wider spacing or more nodes, less beyond.
    grid, outer_grid : int
        Points per unit of length of the prior integral over a single layer; the second one where another layer is known.
        Doubled: four times the time to make tables, changes of 1e-6.
    table_points, outer_table_points : int
        Points of the prior integral over more layers, for the whole and for each node of the outer grid. Doubled: twice the
        time to make tables, changes of 1e-4.
    outer_step : float
        Spacing of the outer grid in units of ``V^{1/2}`` of the known layer, within a factor 2^{1/4}. Doubled: a quarter of the
        tables, and errors of 1e-3.
    outer_reach : float
        Radius of the outer grid in standard deviations of the known layer. Doubled: four times the tables, changes of 1e-5.
    negligible : float
        Modes of the weights on the outer grid with smaller singular values (relative to the largest) are left out. Doubled: a
        few modes less, changes of 3e-6.
    labels, outer_labels : int
        Labels of each scramble, without and with a known layer before the last. Doubled: twice the time, ``1 / sqrt(2)`` of the
        standard error or less.
    scrambles : int
        Independent sets of labels. Doubled: twice the time, ``1 / sqrt(2)`` of the standard error, which is better known.
    discretisation : float
        Relative error reported for nodes, grids and tables: what finer ones were seen to change. Doubled: that error, twice.
    """

    step: float = 0.15
    blind_step: float = 0.08
    fewest_nodes: int = 48
    most_nodes: int = 600
    farthest: tuple[float, ...] = (1e8, 1e18, 1e30)
    grid: int = 50
    outer_grid: int = 8
    table_points: int = 2**18
    outer_table_points: int = 2**13
    outer_step: float = 0.3
    outer_reach: float = 5.2
    negligible: float = 1e-5
    labels: int = 2**12
    outer_labels: int = 2**11
    scrambles: int = 16
    discretisation: float = 3e-4


ACCURACY = Accuracy()
