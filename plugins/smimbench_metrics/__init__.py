"""How good an estimate is: one metric per file."""

from smimbench.hookspecs import hookimpl


@hookimpl
def smimbench_register_metrics(register):
    """Register what is in this folder."""
    from smimbench_metrics.generalization import BayesError, ConstantError, PluginError
    from smimbench_metrics.mse import MSE
    from smimbench_metrics.overlap import Overlap

    register(MSE)
    register(Overlap)
    register(BayesError)
    register(PluginError)
    register(ConstantError)
