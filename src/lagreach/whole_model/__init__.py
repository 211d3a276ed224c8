"""Lags of the whole model: any differentiable torch model, one way back from an output to what reads the input."""
