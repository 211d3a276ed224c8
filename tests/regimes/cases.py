"""Lags that curves are sampled at."""

import numpy as np

LAGS = np.unique(np.round(np.geomspace(1, 128, 24)))
