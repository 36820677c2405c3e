"""How fast do three engines serve one model folder, on the same requests, in the same blocks?

The lab's own server (BEST), vLLM-Omni 0.30 and transformers' `generate`, all on `parity` and on a CPU, greedy, both
lengths fixed, all in float32. Text is then the same; samples are not, for each cuts the codes into windows of its own,
and this vLLM-Omni draws residual codes by chance. vLLM-Omni's environment is that of `make vllm-omni`, or
$OMNILAB_VLLM_OMNI_PYTHON. This says nothing of a GPU. A run of it is read in `docs/engines.md`.
"""

import os
import sys
from pathlib import Path

from omnilab.experiment.arms import Arm
from omnilab.experiment.experiment import Experiment
from omnilab.model.folder import resolve
from omnilab.prompt import Sampling
from omnilab.vllm_omni.deploy import Deploy
from omnilab.vllm_omni.engine import MADE_HERE
from omnilab.vllm_omni.sampling import by_stage
from omnilab.vllm_omni.server import ServerSpec
from omnilab.workload import Workload

FOLDER = resolve("parity")
SAMPLING = Sampling(max_text_tokens=64, max_frames=199, ignore_eos=True, temperature=0.0, seed=42)
BY_STAGE = {"sampling_params_list": by_stage(SAMPLING)}


def ours() -> Arm:
    """The lab's server."""
    command = (sys.executable, "-m", "omnilab.serve", "--model", str(FOLDER), "--recipe", "BEST", "--port", "{port}")
    return Arm(command=command, tokenizer=FOLDER)


def vllm_omni() -> Arm:
    """vLLM-Omni's, its stages with a worker process each; its deploy file lies beside its environment."""
    python = Path(os.environ.get("OMNILAB_VLLM_OMNI_PYTHON", MADE_HERE)).absolute()
    deploy = python.parent.parent / "engines-deploy.yaml"
    if deploy.parent.is_dir():  # else the run says that the environment is missing
        Deploy().write(deploy)
    spec = ServerSpec(python=python, model=FOLDER, deploy=deploy, folder=FOLDER)
    command = spec.command(port=0)
    words = [
        "{port}" if before == "--port" else word
        for before, word in zip(("", *command.words), command.words, strict=False)
    ]
    return Arm(command=words, environment=command.environment, tokenizer=FOLDER, extra_body=BY_STAGE)


def transformers() -> Arm:
    """`generate`, which answers in one piece."""
    script = str(Path(__file__).with_name("transformers_server.py"))
    return Arm(
        command=(sys.executable, script, "--model", str(FOLDER), "--port", "{port}"),
        tokenizer=FOLDER,
        extra_body=BY_STAGE,
    )


EXPERIMENT = Experiment(
    name="engines",
    arms={"omnilab": ours(), "vLLM-Omni": vllm_omni(), "transformers": transformers()},
    exact=frozenset(),
    workload=Workload.random(num_prompts=2, input_len=500, output_len=64, frames=199),
    gate_prompts=Workload.prompts(["What is the capital of France?"], SAMPLING),
    primary="audio_rtf",
)
