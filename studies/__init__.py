"""Studies of lagreach itself: outside the package, run from a checkout."""
