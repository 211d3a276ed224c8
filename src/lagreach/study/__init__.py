"""Studies: tasks with known lags, and experiments on them."""

from lagreach._util.extras import require_extra

require_extra("study")
