"""How the latents become the label: one channel per file."""
