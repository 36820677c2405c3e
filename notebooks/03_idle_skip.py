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
# # Idle skip: work on steps that do nothing
#
# ## The question
#
# Code2Wav turns 25 frames of codes into two seconds of sound, then waits for the Talker to speak 25 more. While a
# request waits, the engine steps again each millisecond and nothing is scheduled: an *empty step*. Before the change
# each of them still updated the states of the batch.
#
# ```
# talker    │f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│f│──chunk──►
# code2wav   · · · · · · · · · · · · · · · · · · · · · · · · ·           │ vocode │ · · · ·
#            └ empty steps: park every request, again and again
# ```
#
# The claim is unusual: work vanishes, and *no latency changes*. An empty step is no step that anyone waits for. To
# confirm a null one has to show that the difference is small, not fail to show one.

# %%
import inspect

from IPython.display import Markdown, display

from omnilab import recipe_with, recipes
from omnilab.experiment.checks.bundle import opened
from omnilab.experiment.gate import compare
from omnilab.experiment.reports.claims import Counts, Stays, judged
from omnilab.experiment.reports.report import Report
from omnilab.notebook import Timeline
from omnilab.notebook.lessons import SEED_RUN, OneLine, counted, size, spans_by_loop
from omnilab.toggles import idle_skip

here = size()
TOGGLE = idle_skip.TOGGLE
TOGGLE

# %% [markdown]
# What the claim says, part by part. This is written down before anything is measured; the verdict holds the run
# against it.

# %%
CLAIM = [
    Counts("code2wav/runner/updates_while_idle", to=0),
    Stays("wall_s"),
    Stays("audio_ttfp_ms"),
]
MARGIN = 0.10  # "no latency changes": within a tenth, said before
for part in CLAIM:
    print("-", part)

# %% [markdown]
# ## The baseline's timeline
#
# Zoom into `code2wav/runner` between two `vocode`: each thin `update_states` is an empty step. Their number is large,
# and each is short.

# %%
pipe = here.open(recipes.BEFORE_1378)
workload = here.workload()
pipe.speak("Warm up.", max_text_tokens=2)
before = pipe.run(workload)
display(spans_by_loop("schedule", "update_states", "vocode", baseline=before))
Timeline.of(("BEFORE_1378", before), most=4000)

# %% [markdown]
# ## The change
#
# One file, one `if`. Requests that have finished are handled on every step on *both* sides, because an empty step may
# carry them. That is the mistake which this optimization invites: skip those as well, and their slots are never
# freed. `omnilab/toggles/unsafe.py` keeps it as a trap for the tests.

# %%
Markdown(f"```python\n{inspect.getsource(idle_skip)}```")

# %% [markdown]
# ## Same output?
#
# No step that computes is touched, so everything must stay equal.

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
# `updates_while_idle` is what the toggle takes away; `updates_while_busy` must stay. How often an idle engine steps
# is the clock's business, so idle steps themselves scatter from trial to trial.

# %%
counted(off=before, on=after)

# %%
display(spans_by_loop("schedule", "update_states", "vocode", off=before, on=after))
Timeline.of((f"{TOGGLE.name} off", before), (f"{TOGGLE.name} on", after), most=4000)

# %% [markdown]
# Now the protocol, the same as `python -m omnilab.ablate`: blocks of fresh processes, the output gate (in full on
# prompts with text, sound and a picture), each side once a block in random order, the baseline twice.

# %%
report = here.experiment(name="idle_skip", toggles=[TOGGLE], margin=MARGIN).run(progress=OneLine())
report

# %% [markdown]
# ## Verdict
#
# The count settles the first part. The other two need an *equivalence*: two one-sided tests against the margin.
# *Inconclusive* is the usual answer of a short run on a busy machine, and is not the same as *no effect*.

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
