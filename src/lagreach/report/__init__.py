"""Diagnoses for people: plain words, figures, and one self-contained page."""

from lagreach.report.html import write_report
from lagreach.report.text import describe

__all__ = ["describe", "write_report"]
