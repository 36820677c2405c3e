"""What may write the text: our own Thinker, or a vLLM engine. Each says what it cannot do before anything starts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from omnilab.engine.messages import StageRequest
from omnilab.engine.spec import STAGES, MakeRunner
from omnilab.engine.vllm_runner import vllm_runner
from omnilab.errors import BadInput
from omnilab.model.weights import RANDOM_WEIGHTS_FILE
from omnilab.recipe import Recipe
from omnilab.toggle import occupant_name
from omnilab.toggles.graphed_step import eager_step
from omnilab.toggles.prefill_only_hidden_states import TokenIdsOnly


class ThinkerKind(Protocol):
    """The Thinker's stage beside what all stages share."""

    def runners(self, given: MakeRunner) -> dict[str, MakeRunner]:
        """Return by stage what builds its runner; `given` builds those of the others."""
        ...

    def check_pipeline(self, folder: Path, topology: str, device: str) -> None:
        """Raise BadInput for a model, a topology or a device of the Thinker that cannot be used."""
        ...

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise BadInput for a recipe that cannot be used."""
        ...

    def check_request(self, request: StageRequest) -> None:
        """Raise BadInput for what the Thinker is asked and cannot do."""
        ...


class TransformersThinker:
    """The network of transformers under our own runner: takes all."""

    def runners(self, given: MakeRunner) -> dict[str, MakeRunner]:
        """Return what was given for all."""
        return dict.fromkeys(STAGES, given)

    def check_pipeline(self, folder: Path, topology: str, device: str) -> None:
        """Take any."""

    def check_recipe(self, recipe: Recipe) -> None:
        """Take any."""

    def check_request(self, request: StageRequest) -> None:
        """Take any."""


class VllmThinker:
    """A vLLM engine in the Thinker's process: greedy tokens, and nothing of what lies between the layers."""

    def runners(self, given: MakeRunner) -> dict[str, MakeRunner]:
        """Return vLLM's for the Thinker, for the others what was given."""
        return dict.fromkeys(STAGES, given) | {"thinker": vllm_runner}

    def check_pipeline(self, folder: Path, topology: str, device: str) -> None:
        """Ask for vLLM, real weights and a process of the Thinker's own."""
        if find_spec("vllm") is None:
            raise BadInput("thinker='vllm' needs vLLM in this environment: pip install 'omnilab[vllm]'")
        if topology != "processes":
            raise BadInput(
                f"thinker='vllm' needs topology='processes', not {topology!r}: vLLM sets up the process it lives in"
            )
        if device.startswith("cuda:") and device != "cuda:0":
            raise BadInput(
                f"thinker='vllm' runs on the first GPU it sees, not on {device}: take "
                "device={'thinker': 'cuda:0', ...}, and put that GPU first in CUDA_VISIBLE_DEVICES"
            )
        if (folder / RANDOM_WEIGHTS_FILE).exists():
            raise BadInput(
                f"{folder} has no weights, ours are drawn when a stage starts, and vLLM reads files: "
                "python -m omnilab.models parity --out DIR writes a folder that has them"
            )

    def check_recipe(self, recipe: Recipe) -> None:
        """Ask for token ids alone on the edge, and our plain decode step: vLLM has its own."""
        if recipe.thinker_payload is not TokenIdsOnly:
            raise BadInput(
                f"thinker='vllm' hands out token ids and no rows, and {occupant_name(recipe.thinker_payload)} sends "
                "rows: take recipes.BEST, or dataclasses.replace(recipe, thinker_payload=TokenIdsOnly)"
            )
        if recipe.decode_step is not eager_step:
            raise BadInput(
                f"thinker='vllm' decodes by itself, so that {occupant_name(recipe.decode_step)} would not be in force "
                "there: leave the recipe's decode_step at eager_step"
            )

    def check_request(self, request: StageRequest) -> None:
        """Ask for text, greedily."""
        prompt = request.prompt
        if prompt.input_features is not None or prompt.pixel_values is not None:
            raise BadInput(
                "thinker='vllm' takes text prompts alone: at audio and images the Talker reads hidden states, and "
                "those of vLLM are not wired to it. Open the pipeline with thinker='transformers' for them"
            )
        if request.sampling.temperature > 0:
            raise BadInput(
                "thinker='vllm' answers greedily: vLLM draws other random numbers than we do. Ask with temperature=0 "
                "or none, or open the pipeline with thinker='transformers'"
            )


THINKERS: dict[str, ThinkerKind] = {"transformers": TransformersThinker(), "vllm": VllmThinker()}
