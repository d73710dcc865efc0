"""SciPy's special functions take arrays of other namespaces only if this is set before SciPy is imported."""

import os

os.environ["SCIPY_ARRAY_API"] = "1"
