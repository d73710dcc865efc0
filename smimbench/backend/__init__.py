"""Where arrays live and what the machine can do: namespaces, devices, streaming, clocks and ceilings."""
