"""Transport of gradients back through time: exact, to first order, and how far the two agree."""
