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
# # Prefill-only hidden states: what the Talker never reads
#
# ## The question
#
# The Talker speaks from what the Thinker thinks. Per token it gets a layer-0 row (the embedding). For places in the
# *prompt* where there was sound or a picture it also reads a layer-24 row, and it needs the ids once, at its prefill.
# So how much of a decode chunk does it read?
#
# | in a decode chunk | sent by the baseline | read by the Talker |
# |---|---|---|
# | layer-0 row | 1 | 1 |
# | layer-24 row | 1 | never |
# | output ids | all so far: 1, 2, 3, ... | never |
#
# It is not the sending that costs. The receiver appends what it gets to what it has, and that goes through the
# Talker's engine, pickle and merge on *every* step:
#
# ```
# step t:  receiver  accumulates  (P + t) rows twice,  1 + 2 + ... + t = t²/2 ids     P prompt tokens
#          engine    pickles all of it to the runner
#          runner    unpickles it, merges it: visits each of the t²/2 list elements
# over T steps: rows ~ T·(P + T/2), list elements ~ T³/6
# ```
#
# Without layer-24 rows and ids in decode chunks the rows halve and the lists vanish.

# %%
import inspect

from IPython.display import Markdown, display

from omnilab import recipe_with, recipes
from omnilab.experiment.checks.bundle import opened
from omnilab.experiment.gate import compare
from omnilab.experiment.reports.claims import Falls, StopsGrowing, judged
from omnilab.experiment.reports.report import Report
from omnilab.notebook import Timeline
from omnilab.notebook.lessons import SEED_RUN, OneLine, counted, size, spans_by_loop
from omnilab.toggles import prefill_only_hidden_states

here = size()
TOGGLE = prefill_only_hidden_states.TOGGLE
TOGGLE

# %% [markdown]
# What the claim says, part by part. This is written down before anything is measured; the verdict holds the run
# against it.

# %%
CLAIM = [
    Falls("host_ms_per_step", at_most=0.5),
    StopsGrowing(within=1.25),  # "no longer grows": less than a quarter more in the last tenth than in the first
]
for part in CLAIM:
    print("-", part)

# %% [markdown]
# ## The baseline's timeline
#
# Follow one chunk into the Talker: `get` and `accumulate` in `talker/receive`, `pickle` in `talker/engine`,
# `unpickle` and `merge` in `talker/runner`, then `forward`. These five of the Talker are what `host_ms_per_step` sums
# up. Zoom to the first steps, then to the last: what has become wider?

# %%
pipe = here.open(recipes.BEFORE_1378)
workload = here.workload(here.long_len)
pipe.speak("Warm up.", max_text_tokens=2)
before = pipe.run(workload)
display(spans_by_loop("get", "accumulate", "pickle", "unpickle", "merge", baseline=before))
Timeline.of(("BEFORE_1378", before), most=4000)

# %% [markdown]
# ## The change
#
# One file; three builders of the payload on one seam. The third, `TokenIdsOnly`, goes further: it is an occupant
# without a toggle of its own, in the recipe `BEST`.

# %%
Markdown(f"```python\n{inspect.getsource(prefill_only_hidden_states)}```")

# %% [markdown]
# ## Same output?
#
# What is left out is never read, so everything must stay equal, bit for bit. Prompts of text alone would not notice a
# missing layer-24 row of the prompt; that is why the protocol's gate also asks with sound and with a picture.

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
# The counters first: rows and ids in later chunks, bytes that the receiver accumulated, bytes pickled to the runner,
# list elements visited.

# %%
counted(off=before, on=after)

# %%
display(spans_by_loop("get", "accumulate", "pickle", "unpickle", "merge", off=before, on=after))
Timeline.of((f"{TOGGLE.name} off", before), (f"{TOGGLE.name} on", after), most=4000)

# %% [markdown]
# Now the protocol, the same as `python -m omnilab.ablate`: blocks of fresh processes, the output gate (in full on
# prompts with text, sound and a picture), each side once a block in random order, the baseline twice.

# %%
report = here.experiment(
    name="prefill_only_hidden_states", toggles=[TOGGLE], workload=workload, primary="host_ms_per_step"
).run(progress=OneLine())
report

# %% [markdown]
# ## Verdict
#
# The claim is about the host work of a Talker step, so that is the metric of the verdict. Whether it *grows* shows
# only where an answer is long enough for the baseline to grow for certain; where it is not, that part stays open.

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
