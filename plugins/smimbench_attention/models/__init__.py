"""How the signal and the inputs form the latents, one model per file."""
