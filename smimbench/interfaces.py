"""The five contracts (model, channel, prior, metric, algorithm) and the small data types that pass between them.

Every item is an immutable object, usually a frozen dataclass: its fields are its parameters, its class attributes
``name``, ``version``, ``reference`` and ``capabilities`` say what it is. ``version`` is an integer that is raised
whenever the numbers that the item produces change; it is part of the key under which results are stored.

Shapes and letters used everywhere:

===========  ==========================================================================================
``n``        samples
``T``        tokens of a sample
``D``        dimension of a token
``P``        index components (directions, or layers)
``C``        sites: tokens (sequence-multi-index) or unordered token pairs a <= b (attention-indexed)
``z``        latents, ``(n, P, C)``; given an estimate, ``z ~ N(omega, V (x) I_C)``, ``V`` of shape ``(P, P)``
===========  ==========================================================================================

An optional class attribute ``contract`` is the ``CONTRACT_VERSION`` that an item was written for; an item of a newer one
is refused. Without it, it is taken to be of the present one.

Methods that are marked *optional* may be missing: the engine asks with ``hasattr`` and has a generic substitute.
All arrays follow the Python array API standard; an item works on the namespace and the device of its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np


__all__ = [
    "CONTRACT_VERSION",
    "DIRECTIONS",
    "SYMMETRIES",
    "Algorithm",
    "Array",
    "Capabilities",
    "Channel",
    "Claims",
    "Cost",
    "Data",
    "Denoised",
    "Info",
    "Metric",
    "Model",
    "NotMeasured",
    "Overlap",
    "ParameterError",
    "Plan",
    "Posterior",
    "Prior",
    "ProblemLike",
    "Start",
    "StoppingRule",
    "Uncertain",
]

Array: TypeAlias = Any

CONTRACT_VERSION = 1
"""Version of the contracts on this page. It is raised when an item written for an older one could break."""


SYMMETRIES = (
    "none",
    "signs",
    "common-sign",
    "permutations",
    "permutations-common-sign",
    "signed-permutations",
    "rotations",
)
"""What a channel's labels may not see of the signal: the values of ``symmetry``."""


DIRECTIONS = ("lower", "higher", "one")
"""Which values of a metric are better: the values of ``direction``; ``"one"`` stands for closer to 1."""


class NotMeasured(Exception):
    """A metric has no value for this estimate; the message says why, and tables show it."""


class ParameterError(ValueError):
    """A parameter of an item has a value that makes no sense.

    Parameters
    ----------
    key : str
        Name of the parameter.
    message : str
        What is wrong and what would be right, without the name: ``"must be > 0, got -1"``.
    """

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


@dataclass(frozen=True)
class Capabilities:
    """What an item can be combined with.

    Attributes
    ----------
    models : tuple of str
        Names of the models it works for; ``("*",)`` stands for all.
    backends : tuple of str
        Names of array namespaces it runs on; ``("*",)`` stands for every array API namespace.
    dtypes : tuple of str
        Real data types it is accurate in.
    """

    models: tuple[str, ...] = ("*",)
    backends: tuple[str, ...] = ("*",)
    dtypes: tuple[str, ...] = ("float64", "float32")


class Uncertain(NamedTuple):
    """A computed number (or array) with its numerical error and the method that gave it.

    ``error`` is one standard error for Monte Carlo and an estimate of the absolute error for quadrature; it has the
    shape of ``value`` or is a scalar. ``method`` is ``"closed form"``, ``"quadrature"`` or ``"Monte Carlo"``, or a
    few words more.
    """

    value: Array
    error: Array
    method: str


class Posterior(NamedTuple):
    """Posterior of the latents of every sample.

    Attributes
    ----------
    mean : array (n, P, C)
        ``E[z | y, omega, V]``.
    covariance : array (P, P)
        ``Cov(z_c | y, omega, V)`` averaged over samples and sites.
    second_moment : array (n, P, C, P, C) or None
        ``E[z z^T | y, omega, V]``, not centred; only on request.
    error : float
        Numerical error of ``mean``: root mean square over samples, relative to ``sqrt(diag V)``. 0 for closed forms.
    """

    mean: Array
    covariance: Array
    second_moment: Array | None = None
    error: float = 0.0


class Overlap(NamedTuple):
    """Order parameters: ``Q`` and ``V = second_moment - Q``, both ``(..., P, P)``.

    ``V`` is given apart because the difference would lose all digits when ``Q`` is close to the second moment.
    """

    Q: Array
    V: Array


class Denoised(NamedTuple):
    """Posterior mean of the signal and its error ``V`` (P, P), as claimed by the prior's own theory."""

    estimate: Array
    V: Array


class Cost(NamedTuple):
    """What one iteration has to do at the least, whatever the machine: the numerator of its efficiency.

    Attributes
    ----------
    flops : float
        Floating-point operations of its matrix products, a multiplication and an addition counted as two.
    bytes : float
        Bytes that have to come from memory: what does not fit a cache, counted once for every time it is needed.
    """

    flops: float
    bytes: float


class Start(NamedTuple):
    """Where an algorithm should begin: a signal-shaped estimate and the error ``V`` (P, P) to claim for it."""

    estimate: Array
    V: Array


@dataclass(frozen=True)
class Data:
    """What an algorithm may see: the inputs, the labels and the sizes. Never the teacher.

    Attributes
    ----------
    inputs : array (n, T, D)
        Tokens, iid N(0, 1).
    labels : array (n, ...)
        What the channel's ``forward`` returned.
    sample_ratio : float
        alpha really used: ``n / D`` or ``n / D**2``.
    start : Start or None
        A starting point handed in by the engine (informed or spectral); None means the algorithm's own.
    fresh : callable or None
        ``fresh(rng, n) -> (inputs, labels)`` draws n new samples of the same teacher, for algorithms that learn from a
        stream. ``rng`` is a host generator. None where there is no teacher to ask.
    """

    inputs: Array
    labels: Array
    sample_ratio: float
    start: Start | None = None
    fresh: Callable[[np.random.Generator, int], tuple[Array, Array]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def dimension(self) -> int:
        """D, the size of a token."""
        return int(self.inputs.shape[-1])


class Plan(NamedTuple):
    """What an algorithm means to do, said before anything is drawn.

    Attributes
    ----------
    steps : int or None
        Steps after which it is done by its own account; None: the stopping rule decides.
    batch : int or None
        Samples that a step reads; None: all of them.
    students : int
        Estimates that are learned side by side: every product with the inputs is made so many times.
    draws_fresh : bool
        Whether it learns from samples of its own (``Data.fresh``): its rows then stand at the sample ratio of all of them.
    """

    steps: int | None = None
    batch: int | None = None
    students: int = 1
    draws_fresh: bool = False


class _Reported(NamedTuple):
    residual: Any
    predicted_overlap: Array | None = None
    self_overlap: Array | None = None
    squared_step: Array | None = None
    log_information_ratio: Array | None = None
    warning: str | None = None
    samples: float | None = None
    integration_error: Any = None


STORED_NAMES = {
    "predicted_overlap": "claimed",
    "self_overlap": "held",
    "squared_step": "moved",
    "log_information_ratio": "strain",
}
"""Under which key a record keeps an entry of ``Info``, where that is another name: the one that ``Info`` had at first."""


class Info(_Reported):
    """What a step reports to the engine's loop; nothing in it is iterated.

    The names ``claimed``, ``held``, ``moved`` and ``strain``, which four entries had before, are accepted and read too.

    Attributes
    ----------
    residual : float or 0-d array
        Undamped relative change of the iterate; the tolerance applies to it. NaN or inf means divergence.
    predicted_overlap : array (P,) or None
        Overlap of each component with the signal according to the algorithm's own account, ``diag(second_moment - V)``.
        None for algorithms without such an account: then only the residual and the number of steps end a run.
    self_overlap : array (P,) or None
        Overlap of each component of the estimate with itself; on the Nishimori line it equals ``predicted_overlap``.
    squared_step : array (P,) or None
        Undamped squared change of each component in this step, in units of an overlap.
    log_information_ratio : array (P,) or None
        Logarithm of the ratio of two independent estimates of the information that the data carry; 0 when the
        algorithm's account of its own error is right.
    warning : str or None
        Something the user should know about this run; the engine stores each different one once.
    samples : float or None
        Samples processed since the start, repeated ones counted each time; recorded in the trajectory, so that
        learning can be shown over epochs or over a stream.
    integration_error : float, 0-d array or None
        Largest ``Posterior.error`` of this step. It may stay on the device: the engine reads it with the rest and warns.

    Raises
    ------
    TypeError
        For an entry that is unknown, or given under both of its names.
    """

    __slots__ = ()

    def __new__(cls, *entries: Any, **named: Any) -> Info:
        """The entries by position or by name, former names included."""
        for name, former in STORED_NAMES.items():
            if former in named:
                if name in named:
                    raise TypeError(f"Info got {name!r} and {former!r}, which are one entry")
                named[name] = named.pop(former)
        return super().__new__(cls, *entries, **named)

    claimed = property(attrgetter("predicted_overlap"), doc="Former name of ``predicted_overlap``.")
    held = property(attrgetter("self_overlap"), doc="Former name of ``self_overlap``.")
    moved = property(attrgetter("squared_step"), doc="Former name of ``squared_step``.")
    strain = property(attrgetter("log_information_ratio"), doc="Former name of ``log_information_ratio``.")


class StoppingRule(Protocol):
    """When a run may end, and whether its end can be trusted; an algorithm may bring one with ``stopping_rule``."""

    def watch(self, info: Info) -> None:
        """Take what a step reported. Numbers are on the host: ``residual`` a float, the rest float64 arrays or None."""
        ...

    def ending(self, tolerance: float) -> str | None:
        """Why the run may end here, in words, or None. Not asked where the algorithm plans a number of steps."""
        ...

    def complaint(self) -> str | None:
        """Why an end here cannot be trusted, in words, or None: the run is then ``not-converged``."""
        ...


class Model(Protocol):
    """How the signal meets the inputs.

    Optional method ``forward_gram(inputs, factor) -> z, pull``: latents of the signal ``F F^T`` straight from F, and a
    function from g to the gradient of ``sum(g z)`` with respect to F; for priors that say with ``gram_scale(factor)``
    what turns ``F F^T`` into their signal.

    Attributes
    ----------
    tokens : int
        T.
    rank : str
        ``"low"`` (a signal of P vectors, ``n = alpha D``) or ``"extensive"`` (of P matrices D x D, ``n = alpha D^2``). Ask
        for this, not for the value of ``kappa``.
    kappa : float
        Factor of ``Qhat = kappa alpha E sum_c g_c g_c^T``: 1 (low rank) or 2 (extensive rank).
    sites : int
        C.
    """

    name: str
    version: int
    reference: str
    capabilities: Capabilities
    tokens: int

    @property
    def rank(self) -> Literal["low", "extensive"]:
        """Whether the signal is a few vectors (``"low"``) or matrices of extensive rank (``"extensive"``)."""
        ...

    @property
    def kappa(self) -> float:
        """Factor of ``Qhat``: 1 (low rank) or 2 (extensive rank)."""
        ...

    @property
    def sites(self) -> int:
        """C, the number of latents per component."""
        ...

    def sample_count(self, alpha: float, dimension: int) -> int:
        """Number of samples n closest to the sample ratio, at least 1."""
        ...

    def sample_ratio(self, n: int, dimension: int) -> float:
        """The inverse of ``sample_count``: n / D or n / D^2."""
        ...

    def signal_shape(self, components: int, dimension: int) -> tuple[int, ...]:
        """Shape of a signal: (P, D) or (P, D, D)."""
        ...

    def draw_inputs(self, rng: np.random.Generator, out: Array) -> None:
        """Fill the host array ``out`` (n, T, D) with iid N(0, 1) numbers, in place."""
        ...

    def draw_noise(self, rng: np.random.Generator, components: int, dimension: int) -> Array:
        """The unit noise Z of the effective channel ``R = S + Qhat^(-1/2) Z``, signal-shaped, on the host."""
        ...

    def forward(self, inputs: Array, signal: Array) -> Array:
        """Latents z (n, P, C) of the signal. Matrix products only."""
        ...

    def adjoint(self, inputs: Array, g: Array) -> Array:
        """Signal-shaped sum over samples, so normalised that ``R = W_hat + Qhat^{-1} adjoint(g)``."""
        ...

    def denoiser_flops(self, dimension: int, components: int) -> float:
        """Floating-point operations of one call of a typical prior's ``denoise``; the cost of a run is estimated with it."""
        ...

    def adjoint_scale(self, dimension: int) -> float:
        """``adjoint`` divided by the transpose of ``forward``: 1 (low rank) or kappa / D (extensive rank)."""
        ...

    def inner(self, first: Array, second: Array) -> Array:
        """Overlap matrix (P, P) of two signals: ``A B^T / D`` or ``tr(A_p B_q) / D``."""
        ...

    def chunks(self, n: int, dimension: int, components: int) -> Iterable[slice]:
        """Slices of the samples whose inputs and intermediate results fit the cache.

        Optional keyword arguments, given by the engine to models that name them: ``itemsize``, the bytes of a number, and
        ``like``, an array on the device that will do the work. A method ``cost(n, dimension, components, itemsize) ->
        Cost`` (optional) says what one ``forward`` and one ``adjoint`` in a single pass over the inputs have to do.
        """
        ...

    def align(self, signal: Array, estimate: Array, symmetry: str) -> Array:
        """The estimate after the symmetry operation that brings it closest to the signal."""
        ...

    def squared_error(self, signal: Array, estimate: Array) -> Array:
        """Squared error (P,) of every component, 1 for the prior mean in the limit."""
        ...

    def overlap(self, signal: Array, estimate: Array) -> Array:
        """What the metric ``overlap`` reports (P,): the squared cosine (low rank), or tr(S_hat S) / D."""
        ...


class Channel(Protocol):
    """How the latents become the label, y = g(z), and what a label says about them.

    A dataclass field named ``tokens`` is filled in from the model. ``symmetry`` names the transformations of the
    signal that no label can see: ``"none"``, ``"signs"`` (each component apart), ``"common-sign"`` (all
    at once, as of a product), ``"permutations"``, ``"permutations-common-sign"``, ``"signed-permutations"`` or
    ``"rotations"``.

    Optional methods, each with a generic substitute in the engine:

    ``information(Q, V) -> Uncertain``
        ``E sum_c g_c g_c^T`` (..., P, P) with ``omega ~ N(0, Q (x) I_C)``; leading axes are a batch.
    ``susceptibility(Q, V) -> Uncertain``
        How the information of components without overlap (``Q_aa = 0``) starts where no label sees their sign: ``I_ab =
        lambda_ab Q_ab`` to first order, ``lambda_ab = E sum_cc' G_a,cc' G_b,cc'`` (..., P, P) with ``G_a,cc' =
        (E[z_ac z_ac' | y, omega] - V_aa delta_cc') / V_aa^2``. Entries of other components are 0.
    ``equations`` (attribute, float)
        Number of independent equations that a noiseless label states about its latents, the limit of ``tr(V I)`` as V
        vanishes, where all components share them. Noisy labels have none: the attribute is missing, and the engine looks at
        the limit itself.
    ``vjp(z, cotangent) -> array (n, P, C)``
        Gradient of ``sum(cotangent * observable(forward(z)))`` with respect to ``z``.
    ``observable(y) -> array``
        The label as a user would measure it (probabilities); default: y itself.
    ``log_likelihood(y, z) -> array (n,)``
        In place of ``posterior``: ``log p(y | z)`` up to a function of y, ``-inf`` where y is impossible. The engine
        integrates, in up to 12 latent dimensions, to about 1e-2 of the width of the posterior. A label that is a continuous
        function of the latents without noise has no likelihood and needs ``posterior``. Channels with few labels should
        give normalised probabilities: sums over labels are then exact.
    ``predict(z) -> array``
        ``E[observable(y) | z]`` of a noisy label; otherwise summed over labels or averaged over draws.
    ``symmetry``, ``components`` (attributes)
        Without them the symmetry is looked for, and there is one component.
    ``compiled(V) -> (function, constants) or None``
        Posterior of one sample, compiled by Numba, for the models that have a compiled pass over their inputs (extra
        ``fast``): ``function(y, omega, constants, mean, covariance)`` takes the flattened label and omega (P, C), writes
        the mean (P, C) and adds the covariance, averaged over sites, to (P, P). ``constants`` is a vector of its choice.
    ``generalization_error(Q, V) -> dict of Uncertain``
        Closed forms for ``"bayes"``, ``"plugin"`` and ``"constant"``.
    """

    name: str
    version: int
    reference: str
    capabilities: Capabilities
    symmetry: str

    @property
    def components(self) -> int:
        """P, the number of directions or layers."""
        ...

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Labels of the latents ``z`` (n, P, C). ``rng`` is required by noisy channels only."""
        ...

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: np.random.Generator | None = None,
    ) -> Posterior:
        """Posterior of z ~ N(omega, V (x) I_C) given y. ``rng`` is used by channels that integrate by sampling."""
        ...


class Prior(Protocol):
    """The law of the signal.

    Less is enough: ``sample`` and ``denoise`` (moments and ``overlap`` are then simulated); or, for low rank,
    ``log_density(w)`` of iid entries, elementwise and not necessarily normalised; or, for extensive rank, the law of the
    eigenvalues as ``quantile(u)`` (inverse distribution function on (0, 1)) or ``eigenvalues`` (samples). Laws given by a
    density or by eigenvalues are scaled to unit variance unless there is a ``sample`` too. See
    ``smimbench.derive.prior``.

    ``second_moment`` is E[S S^T]/D, ``(P, P)`` for ``components`` components, and ``mean_overlap`` the part of it that
    the prior mean already holds (0, or rho). Both are host arrays.
    """

    name: str
    version: int
    reference: str
    capabilities: Capabilities

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Array:
        """Draw a signal on the host."""
        ...

    def mean(self, components: int, dimension: int) -> Array:
        """Prior mean, signal-shaped, on the host."""
        ...

    def second_moment(self, components: int) -> Array:
        """E[S S^T] / D, (P, P), on the host."""
        ...

    def mean_overlap(self, components: int) -> Array:
        """The part of ``second_moment`` that the prior mean holds, (P, P), on the host."""
        ...

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean of the signal given ``R = S + Qhat^{-1/2} Z`` and its error V."""
        ...

    def overlap(self, Qhat: Array) -> Overlap:
        """The state-evolution map of ``denoise``; ``Qhat`` (..., P, P), leading axes are a batch."""
        ...


@dataclass
class Claims:
    """What an algorithm claims of its estimate, and what the engine knows about it.

    Attributes
    ----------
    V : array (P, P) or None
        Error that the algorithm claims, components in the order of its estimate; None if it claims none.
    teacher : array
        The signal, on the device and in the dtype of the estimate.
    aligned : array
        The estimate after the symmetry operation that brings it closest to the teacher.
    aligned_V : ndarray (P, P) or None
        ``V`` after the same operation, on the host.
    remarks : list of str
        A metric appends what the user should know; it is stored with the record as a warning.
    memory : dict
        For what several metrics need of one estimate, so that it is computed once.
    """

    V: Array | None
    teacher: Array
    aligned: Array
    aligned_V: Array | None = None
    remarks: list[str] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)


class Metric(Protocol):
    """A number, or one number per component, that says how good an estimate is.

    ``label`` names it in tables and figures, ``unit`` says in a few words what a value of 1 means. ``direction`` is one of
    ``DIRECTIONS``. A metric is measured once, on the final estimate and outside the clock, in the cells of suites that list it
    in ``run.metrics``; its name is part of the key of these cells.

    Optional members:

    ``in_trajectory`` (attribute, bool)
        Measured at every recorded iteration of every run, whether a suite lists it or not, and then no part of a key. It has
        to be cheap and to work on the device of the estimate.
    ``theory(problem, point) -> (values, errors)``
        What theory says of it: two lists as long as that of ``measure``, None where theory says nothing. ``point`` is a
        point of the JSON of ``smimbench theory``: ``overlap`` is Q (P, P), ``V = second_moment - Q``. Algorithms with a
        theory of their own give points of the same form.
    """

    name: str
    version: int
    reference: str
    capabilities: Capabilities
    label: str
    unit: str
    direction: str
    per_component: bool

    def measure(self, instance: Any, estimate: Array, claims: Claims) -> list[float]:
        """Its values: P of them if ``per_component``, otherwise one; NaN for a component that has none.

        Parameters
        ----------
        instance : smimbench.problem.Instance
            Knows the problem and the teacher.
        estimate : array
            Signal-shaped, as the algorithm left it.
        claims : Claims

        Raises
        ------
        NotMeasured
            If there is no value; the message says why.
        """
        ...


class ProblemLike(Protocol):
    """A problem as an item sees it; ``smimbench.Problem`` is the one that there is.

    Attributes
    ----------
    model, channel, prior
        The three items, with all that the engine derives for them.
    components : int
        P.
    """

    model: Model
    channel: Channel
    prior: Prior
    components: int

    def pass_cost(self, data: Data, samples: int | None = None) -> Cost | None:
        """What one pass over so many samples (default: all) takes, forward and adjoint; None if the model does not say."""
        ...


class Algorithm(Protocol):
    """Anything that maps data to an estimate of the signal.

    In place of the three methods one is enough, ``fit(data) -> estimate``, of a class or alone: a function
    ``fit(data, *, parameter=value)`` can be registered as it is. It may name ``problem`` and ``rng`` as arguments; see
    ``smimbench.registry.adapters``.

    The loop, the clock, the time limit, divergence and the trajectory belong to the engine. Optional methods:

    ``plan(data) -> Plan``
        What it means to do: steps, batch, students, whether it draws fresh samples. Only the shapes of ``data`` may be asked:
        before a run it is a stand-in. An attribute ``steps`` or a method ``steps_for(data) -> int`` is enough to say the
        number of steps.
    ``stopping_rule(problem, dimension) -> StoppingRule``
        A rule of its own for when to end, made anew for every run. Without it, the residual ends a run, and the overlaps that
        ``Info`` reports, if any (``smimbench.derive.stopping``).
    ``start(problem, data, rng) -> Start``
        An estimate with its error for other algorithms to begin from: it can be named as ``start`` in the table ``[run]``.
    ``restarted(problem) -> Algorithm | None``
        The version for the engine's one restart after a run that diverged or found no fixed point.
    ``refuses(problem) -> str | None``
        Why a problem cannot be solved, in words; its cells end as ``skipped`` with that reason.
    ``theory(problem, alpha) -> dict``
        The algorithm's own theoretical point, in place of the Bayes-optimal one, for its rows.
    ``variance(state) -> array (P, P)``
        The error V that it predicts for its estimate: with it the engine evaluates the Bayes predictor of the label.
    ``cost(problem, data) -> Cost``
        What one iteration has to do: with it the runtime table shows which part of the machine's speed is reached.
    ``findings(state) -> dict``
        Lists of numbers by name (None for one that was not found) that are kept with the record and shown as means, beside
        the entry of the same name of ``theory``.
    ``init_students(problem, data, rng, students) -> state``
        Several independent starts as one state with one more axis in front, which ``step`` and ``estimate`` keep; without
        it, ``averaged`` runs one student after the other.

    ``data.inputs`` may be a stand-in that only gives slices of the samples (``smimbench.backend.streaming``): go through them
    with ``sample_chunks``. One iteration should not ask for a number on the host: what ``Info`` holds may be 0-d arrays, which
    the engine reads together.
    """

    name: str
    version: int
    reference: str
    capabilities: Capabilities

    def init(self, problem: ProblemLike, data: Data, rng: np.random.Generator) -> Any:
        """First state. ``rng`` is a host generator of its own for every run."""
        ...

    def step(self, problem: ProblemLike, data: Data, state: Any) -> tuple[Any, Info]:
        """One iteration: a new state and what to report."""
        ...

    def estimate(self, state: Any) -> Array:
        """Signal-shaped estimate held by a state."""
        ...
