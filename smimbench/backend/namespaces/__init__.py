"""The array backends other than NumPy's, one file each.

A file has a function ``open_backend(dtype, *, tf32) -> Backend`` that raises ``BackendError`` where the backend cannot be used.
Its name is the name of the backend; nothing else has to be changed to add one.
"""
