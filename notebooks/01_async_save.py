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
# # Async save: who builds the payload?
#
# ## The question
#
# After each step a stage turns what the step made into a *payload* for the next stage, and sends it. Three things
# have to be done: **build** (join tensors, copy id lists, flatten codes), **encode** (to bytes) and **put** (into
# shared memory). Each stage has an engine thread, which steps, and a sender thread.
#
# ```
#             baseline                                     async_save
# engine │ step │build│ step │build│ step │          engine │ step │·│ step │·│ step │       · a snapshot is queued
# sender        ·encode·put·  ·encode·put·           sender        build·encode·put·build·encode·put
# ```
#
# Encoding and the put are on the sender's thread on both sides. So what moves is the build alone. Is that worth a
# step that starts earlier?

# %%
import inspect

from IPython.display import Markdown, display

from omnilab import recipe_with, recipes
from omnilab.experiment.checks.bundle import opened
from omnilab.experiment.gate import compare
from omnilab.experiment.reports.claims import Counts, Falls, judged
from omnilab.experiment.reports.report import Report
from omnilab.notebook import Timeline
from omnilab.notebook.lessons import SEED_RUN, OneLine, counted, size, spans_by_loop
from omnilab.toggles import async_save

here = size()
TOGGLE = async_save.TOGGLE
TOGGLE

# %% [markdown]
# What the claim says, part by part. This is written down before anything is measured; the verdict holds the run
# against it.

# %%
CLAIM = [
    Counts("thinker/engine/chunks_built", to=0),
    Counts("talker/engine/chunks_built", to=0),
    Falls("wall_s"),
]
for part in CLAIM:
    print("-", part)

# %% [markdown]
# ## The baseline's timeline
#
# Look for `build`: it stands within `save`, in the rows `thinker/engine` and `talker/engine`. How wide is it beside
# the step (`forward`, or `transport` where the runner has a process of its own)? Nothing can be saved beyond that
# width.

# %%
pipe = here.open(recipes.BEFORE_1378)
workload = here.workload()
pipe.speak("Warm up.", max_text_tokens=2)
before = pipe.run(workload)
display(spans_by_loop("build", "save", "encode", "put", baseline=before))
Timeline.of(("BEFORE_1378", before), most=4000)

# %% [markdown]
# ## The change
#
# One file: the baseline first, then the optimized side. The whole change is in *what is queued*: a built payload, or
# a snapshot.
#
# | trap | why it is safe here |
# |---|---|
# | the request changes while the sender builds | `Snapshot.of` notes how many ids there are: the list only grows |
# | a chunk id taken before a build that gives nothing leaves a gap | the id is taken after the build, by one thread |
# | the request ends before its last chunk is built | the snapshot says *finished* itself |

# %%
Markdown(f"```python\n{inspect.getsource(async_save)}```")

# %% [markdown]
# ## Same output?
#
# A toggle states what it keeps. This one must keep everything, bit for bit: tokens, codes and samples.

# %%
pipe.apply(recipe_with(TOGGLE, base=recipes.BEFORE_1378))
after = pipe.run(workload)
found = compare(after, before, TOGGLE.exact, TOGGLE.tolerance)
print("equal, bit for bit:", found.equal)
print("first forbidden difference:", found.difference or "none")

# %% [markdown]
# The same words, with the toggle off and on. Listen to both, although random weights say nothing:

# %%
spoken = {}
for side, recipe in {"off": recipes.BEFORE_1378, "on": recipe_with(TOGGLE, base=recipes.BEFORE_1378)}.items():
    pipe.apply(recipe)
    spoken[side] = pipe.speak("Tell me about rivers.", max_text_tokens=20, max_frames=40, ignore_eos=True, seed=7)
    print(f"{TOGGLE.name} {side}")
    display(spoken[side])
print("equal samples:", (spoken["off"].audio == spoken["on"].audio).all())
pipe.close()

# %% [markdown]
# ## Measurement
#
# First the counters and spans of the two trials above. A build on the sender's thread counts there: an occupant never
# vouches for itself, the stage counts.

# %%
counted(off=before, on=after)

# %%
display(spans_by_loop("build", "save", "encode", "put", off=before, on=after))
Timeline.of((f"{TOGGLE.name} off", before), (f"{TOGGLE.name} on", after), most=4000)

# %% [markdown]
# Now the protocol, the same as `python -m omnilab.ablate`: blocks of fresh processes, the output gate (in full on
# prompts with text, sound and a picture), each side once a block in random order, the baseline twice.

# %%
report = here.experiment(name="async_save", toggles=[TOGGLE]).run(progress=OneLine())
report

# %% [markdown]
# ## Verdict
#
# Counts settle the first half of the claim on any machine. The second half is about time: a thread of the same
# interpreter shares its lock (GIL) with the thread it was taken from, and on few cores it shares the processor too.
# Below five blocks nothing timed is settled.

# %%
judged(report, TOGGLE.name, TOGGLE.claim, CLAIM)

# %% [markdown]
# The same claim against the hour that was kept: the change's own test at full length. It is read from its rows, here
# and now.

# %%
with opened(SEED_RUN) as folder:
    hour = Report.load(folder)
judged(hour, TOGGLE.name, TOGGLE.claim, CLAIM)

# %% [markdown]
# What of it is worth something on a GPU?

# %%
Markdown(report.result(TOGGLE.name).carries)
