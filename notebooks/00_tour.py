# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A tour of omnilab
#
# A speech-and-text model such as Qwen3-Omni is served as three *stages*, each with its own processes:
#
# ```
#           admit                    chunk                          chunk
# request ────────► Thinker ─────────────────────► Talker ─────────────────────► Code2Wav ──► 24 kHz audio chunks
#                   text tokens   embeddings, layer-24  16 codes per 80 ms frame, 25 frames   (1920 samples a frame)
#                       │         rows, ids, finished      a chunk, finished
#                       └──────────► text deltas
# ```
#
# Between the forwards of the three networks the host builds, pickles, copies, merges and waits. omnilab makes each
# way of doing that a **toggle**, an optimization with its baseline kept beside it, and answers: which one pays, why,
# and is the output still the same?
#
# Weights here are random: the speech says nothing. What the host does with it costs what it costs in production.

# %%
import tempfile
from pathlib import Path

from IPython.display import display

from omnilab import TOGGLES, AudioChunk, Finished, TextDelta, recipe_with, recipes
from omnilab.experiment.checks.bundle import unpack
from omnilab.experiment.checks.verification import verify
from omnilab.experiment.paired import paired
from omnilab.experiment.reports.report import Report
from omnilab.notebook import Panel, Timeline
from omnilab.notebook.lessons import SEED_RUN, counted, size

here = size()
here

# %% [markdown]
# ## Speak
#
# `Pipeline.open` starts the stages, a process each; here also one for each runner, as the baseline has it. They end
# with `close()`, with the kernel, or when the kernel is killed.

# %%
pipe = here.open(recipes.BEFORE_1378, topology="processes")
pipe.speak("Tell me about rivers.", max_text_tokens=20, max_frames=40, ignore_eos=True, seed=7)

# %% [markdown]
# Text and audio come as they are made. Leaving the loop early aborts the request in every stage.

# %%
for event in pipe.stream("Go on.", max_text_tokens=8, max_frames=40, seed=7):
    match event:
        case TextDelta(token_ids=tokens):
            print(f"{len(tokens)} text token", end="; ")
        case AudioChunk(audio=samples, sample_rate=rate):
            print(f"\n{len(samples) / rate:.2f} s of audio")
        case Finished(speech=speech):
            print(f"\nfinished: {speech.finish_reason}")

# %% [markdown]
# A notebook already runs an event loop. Plain calls work inside it, as above; `aspeak`, `astream` and `arun` give the
# loop back while they wait. Nothing of asyncio is patched, and both kinds can be mixed.

# %%
waited_for = await pipe.aspeak("And once more, without blocking.", max_text_tokens=8, seed=7)
again = pipe.speak("And once more, without blocking.", max_text_tokens=8, seed=7)
print("one seed gives one answer:", waited_for.token_ids == again.token_ids)

# %% [markdown]
# ## Seams, toggles, recipes
#
# A **seam** is a named place where an implementation may be swapped. A **recipe** fills every seam. A **toggle** is
# one optimization of one seam, with a claim. No boolean and no string selects an implementation, and nothing is
# patched.

# %%
display(*TOGGLES[:4])

# %%
recipe_with("prefill_only_hidden_states", "shallow_merge", base=recipes.BEFORE_1378)

# %% [markdown]
# `apply` rewires every stage in milliseconds; the weights stay loaded. `run` measures a workload. Both lengths of a
# measured request are fixed, so that every recipe does the same work.

# %%
workload = here.workload()
pipe.apply(recipes.BEFORE_1378)
before = pipe.run(workload)
pipe.apply(recipes.AFTER_1378)
after = pipe.run(workload)
after

# %% [markdown]
# Counters say what happened, whatever the clock says. These differ between the two trials:

# %%
counted(BEFORE_1378=before, AFTER_1378=after)

# %% [markdown]
# Where the time went, both trials on one axis: a row a loop, a bar a span, a curve a chunk. The wheel zooms, a click
# keeps the details of a bar.

# %%
Timeline.of(("BEFORE_1378", before), ("AFTER_1378", after), most=4000)

# %% [markdown]
# ## A quick comparison
#
# `paired` runs two recipes in turn on the open pipeline. It compares the outputs first, then the times pair by pair.
# It is a quick look: one set of processes, one list of requests.

# %%
paired(pipe, recipes.BEFORE_1378, recipes.AFTER_1378, workload, pairs=3)

# %% [markdown]
# ## A verdict
#
# What may be published comes from the *protocol*: blocks of fresh processes, every variant once in each in random
# order, the baseline twice, an output gate before any speed. A run is a folder; every number in its report can be
# recomputed from its rows. This is the run that the README's table comes from, an hour of the change's own test, as
# it was packed:

# %%
scratch = tempfile.TemporaryDirectory(prefix="omnilab-tour-")
kept = unpack(SEED_RUN, Path(scratch.name))
hour = Report.load(kept)
hour

# %% [markdown]
# Do its numbers follow from its rows? On a command line: `python -m omnilab.verify experiments/results/seed.zip`.

# %%
checked = verify(kept)
print(f"{len(checked.differences)} differences from the rows")

# %% [markdown]
# | next | |
# |---|---|
# | 01 to 04 | the four toggles of vllm-omni#1378: mechanism, same output, measurement, verdict |
# | 05 | what they bring together |
# | 06 | traces: timeline, TensorBoard, Perfetto, py-spy |
# | 07 | a toggle of your own, in a cell |
# | 08 | the releases of vLLM-Omni as recipes |
#
# ## The panel
#
# Press toggles, set lengths, *Run*. It calls `paired` on the pipeline above and holds no logic of its own: *copy as
# code* gives exactly what was run.

# %%
Panel(pipe)
