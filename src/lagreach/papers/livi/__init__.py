"""*Learnability Window in Gated RNNs* (Livi 2025) as printed: its statistic, its window, its lemmas and its figures."""
