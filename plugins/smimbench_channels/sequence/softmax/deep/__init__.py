"""More layers, or three tokens: importance sampling with quasi-random points."""
