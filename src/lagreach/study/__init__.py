"""Studies: tasks with known lags, and experiments on them."""
