"""Diagnoses for people: plain words, figures, and one self-contained page."""

from lagreach.report.html import study_page, write_report
from lagreach.report.text import describe, show

__all__ = ["describe", "show", "study_page", "write_report"]
