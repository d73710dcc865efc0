"""A problem (model, channel, prior), its instances, and where their random numbers come from."""
