"""How the latents determine the label."""
