"""How many independent sequences make a signal visible, under Gaussian or heavy-tailed noise."""

from lagreach.detection.information import (
    bayes_error,
    kl_divergence,
    mutual_information,
    paper_information_bound,
    paper_kl_bound,
)
from lagreach.detection.sequences import (
    detectable_signal,
    detection_error,
    detection_status,
    paper_requirement,
    required_sequences,
    robust_efficiency,
)

__all__ = [
    "bayes_error",
    "detectable_signal",
    "detection_error",
    "detection_status",
    "kl_divergence",
    "mutual_information",
    "paper_information_bound",
    "paper_kl_bound",
    "paper_requirement",
    "required_sequences",
    "robust_efficiency",
]
