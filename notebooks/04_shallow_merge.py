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
# # Shallow merge: a visit to every element
#
# ## The question
#
# Before its forward the Talker's runner merges the payload of a step into the state of the request. The merge that
# was there looks for tensors to move to the CPU, and to find them it visits **every element of every list**. The
# lists are token ids, plain integers: there is nothing to find.
#
# ```
# payload {embeddings: [n, H] tensor, sequences: [int, int, int, ...], first_row: int}
#
# baseline        merged[key] = [look(element) for element in list]     cost: the length of the lists
# shallow_merge   state.update(payload)                                 cost: the number of keys
# ```
#
# How long are the lists? Under the baseline of `prefill_only_hidden_states` every decode chunk carries all ids so far
# and the receiver appends them: on step t some t²/2 elements, over an answer T³/6. So this toggle pays with the
# *cube* of the answer's length, and with long answers only. And once `prefill_only_hidden_states` is on, the lists
# are gone: see notebook 05.

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
from omnilab.toggles import shallow_merge

here = size()
TOGGLE = shallow_merge.TOGGLE
TOGGLE

# %% [markdown]
# What the claim says, part by part. This is written down before anything is measured; the verdict holds the run
# against it.

# %%
CLAIM = [
    Counts("talker/runner/elements_visited", to=0),
    Falls("host_ms_per_step"),
]
for part in CLAIM:
    print("-", part)

# %% [markdown]
# ## The baseline's timeline
#
# `merge` stands in `talker/runner`, right before `forward`: on the critical path of every frame. Compare its width at
# the beginning and at the end of the answer.

# %%
pipe = here.open(recipes.BEFORE_1378)
workload = here.workload(here.long_len)
pipe.speak("Warm up.", max_text_tokens=2)
before = pipe.run(workload)
display(spans_by_loop("unpickle", "merge", "forward", baseline=before))
Timeline.of(("BEFORE_1378", before), most=4000)

# %% [markdown]
# ## The change
#
# One file. The review of the change calls the old merge *deep*; it does not nest, it is only thorough.
#
# | what `dict.update` gives up | why it is not needed |
# |---|---|
# | tensors moved to contiguous CPU memory | payloads come from a connector: they are on the CPU |
# | merging nested dicts | payloads are flat; `omnilab/toggles/unsafe.py` shows what happens where they are not |

# %%
Markdown(f"```python\n{inspect.getsource(shallow_merge)}```")

# %% [markdown]
# ## Same output?
#
# The merged state is the same state. Everything must stay equal.

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
# `elements_visited` is counted by the runner, not by the merge.

# %%
counted(off=before, on=after)

# %%
display(spans_by_loop("unpickle", "merge", "forward", off=before, on=after))
Timeline.of((f"{TOGGLE.name} off", before), (f"{TOGGLE.name} on", after), most=4000)

# %% [markdown]
# Now the protocol, the same as `python -m omnilab.ablate`: blocks of fresh processes, the output gate (in full on
# prompts with text, sound and a picture), each side once a block in random order, the baseline twice.

# %%
report = here.experiment(name="shallow_merge", toggles=[TOGGLE], workload=workload, primary="host_ms_per_step").run(
    progress=OneLine()
)
report

# %% [markdown]
# ## Verdict
#
# The count settles the law. Whether the time shows depends on how long the lists have become on this workload: with
# the cube of the answer, the kept hour had far more to save.

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
