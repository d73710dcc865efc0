"""Channels: probability laws of the label given the latents."""
