"""Curves over lags, one file each: what the states hold, what weights nearby could make of them."""
