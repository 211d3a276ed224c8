"""Gradients of the loss by lag, and what they say about dependence."""
