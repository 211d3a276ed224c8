"""Sequences as users have them: read, paired, and their lags in bands."""
