"""Does the window tell what will be learned? The validation study, its analysis and its page."""

from pathlib import Path

from lagreach.study.kinds import StudyKind, register_kind


def register() -> None:
    """Make studies of kind "validation" known to `lagreach.study`."""
    from studies.validation.run import run_validation, show_validation, validation_status

    protocols = Path(__file__).parent / "protocols"
    register_kind("validation", StudyKind(run_validation, validation_status, show_validation, protocols))
