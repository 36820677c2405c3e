"""What spoils a trial although it ended: requests that failed, or a seam filled by something else than was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnilab.trial import Trial

if TYPE_CHECKING:
    from omnilab.experiment.plan import Setting


def wrong_occupant(trial: Trial, setting: Setting) -> str | None:
    """Say where a stage ran something else than the recipe; None when the label matches what ran.

    Names only are compared, for a by-value toggle's source is hashed otherwise in the stage.
    """
    expected = setting.occupants()
    for stage, seams in trial.occupants.items():
        for seam, occupant in seams.items():
            if seam in expected and occupant.split()[0] != expected[seam].split()[0]:
                return f"{stage} runs {occupant} in the seam {seam}, not {expected[seam]}"
    return None


def failed_requests(trial: Trial) -> str | None:
    """Say how many requests failed and how the first of them did; None when none did."""
    errors = [record.error for record in trial.records if record.error]
    return f"{len(errors)} of {len(trial.records)} requests failed: {errors[0]}" if errors else None
