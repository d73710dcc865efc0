"""Models, which define how signal and inputs form the latents; one per file."""
