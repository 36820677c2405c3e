"""A recipe: one implementation for each seam. Stages are built from it and never ask what fills it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from omnilab import seams, show
from omnilab.errors import ToggleConflict, ToggleUnavailable
from omnilab.toggle import Toggle, occupant_name, source_hash
from omnilab.toggles import (
    async_save,
    attach_once,
    direct_worker,
    fused_predictor,
    graphed_step,
    idle_skip,
    override_rows,
    prefill_only_hidden_states,
    shallow_merge,
    small_first_chunk,
    stateful_vocode,
    toggle_named,
    wake_engine,
    wake_on_chunk,
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recipe:
    """What fills each seam. The defaults are the state right before vllm-omni#1378."""

    save: seams.MakeSave = async_save.PutInBackground
    thinker_payload: type[seams.ThinkerPayload] = prefill_only_hidden_states.EveryChunk
    idle_step: seams.IdleStep = idle_skip.update_always
    engine_wait: seams.Pause = wake_engine.step_each_ms
    merge: seams.Merge = shallow_merge.merge_elementwise
    accumulate: seams.Accumulate = override_rows.concatenate
    receive_wait: seams.Pause = wake_on_chunk.sleep_1ms
    worker_link: seams.MakeWorkerLink = direct_worker.PickledWorker
    attach: seams.Attach = attach_once.attach_until_finished
    first_chunk: seams.FirstChunk = small_first_chunk.full_first_chunk
    vocode: seams.MakeVocode = stateful_vocode.WindowedVocode
    decode_step: seams.MakeDecodeStep = graphed_step.eager_step
    predict_codes: seams.MakePredictCodes = fused_predictor.predict_in_loop

    def occupants(self) -> dict[str, str]:
        """Return seam -> name and source hash of what fills it, as the process that calls this sees it."""
        filled = {field.name: getattr(self, field.name) for field in fields(self)}
        return {seam: f"{occupant_name(occupant)} {source_hash(occupant)}" for seam, occupant in filled.items()}

    def changed(self) -> dict[str, str]:
        """Return seam -> name of what fills it, where that is not what BEFORE_1378 has."""
        named = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {seam: occupant_name(ours) for seam, (ours, before) in named.items() if ours != before}

    def __repr__(self) -> str:
        """Return one line: what differs from BEFORE_1378."""
        said = ", ".join(f"{seam}={name}" for seam, name in self.changed().items())
        return f"<Recipe BEFORE_1378{' with ' + said if said else ''}>"

    def _repr_html_(self) -> str:
        """Return a table of seams and what fills them as HTML, and what BEFORE_1378 has where that differs."""
        changed = self.changed()
        rows = [
            [
                field.name,
                occupant_name(getattr(self, field.name)),
                occupant_name(field.default) if field.name in changed else "",
            ]
            for field in fields(self)
        ]
        said = f"{len(changed)} of {len(rows)} seams differ from BEFORE_1378" if changed else "as BEFORE_1378"
        return show.frame(show.heading("Recipe", said), show.table(["seam", "filled by", "instead of"], rows, left=3))


def recipe_with(*toggles: Toggle[Any] | str, base: Recipe | None = None) -> Recipe:
    """Turn toggles on over `base` (default BEFORE_1378).

    ToggleConflict names two that fill one seam; ToggleUnavailable an unknown name, a missing requirement or an unknown
    seam.
    """
    chosen = [toggle_named(t) if isinstance(t, str) else t for t in toggles]
    known = {field.name for field in fields(Recipe)}
    filled: dict[str, Toggle[Any]] = {}
    for toggle in chosen:
        if toggle.seam not in known:
            seams_known = ", ".join(sorted(known))
            raise ToggleUnavailable(f"{toggle.name}: no seam is named {toggle.seam!r}; there are {seams_known}")
        if (other := filled.get(toggle.seam)) is not None:
            raise ToggleConflict(f"{other.name} and {toggle.name} both fill the seam {toggle.seam}: choose one")
        if missing := set(toggle.requires) - {t.name for t in chosen}:
            raise ToggleUnavailable(f"{toggle.name} requires {', '.join(sorted(missing))}: turn that on too")
        filled[toggle.seam] = toggle
    return replace(base or Recipe(), **{seam: toggle.optimized for seam, toggle in filled.items()})
