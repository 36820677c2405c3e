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
# # A toggle of your own
#
# Write both sides in a cell and take them through the output gate, the counters and the protocol. Nothing has to be
# registered: a toggle travels to the stage processes by value, and each process proves by name and code hash what is
# in force in it.

# %%
from dataclasses import replace

from IPython.display import display

from omnilab import Toggle, recipe_with, recipes
from omnilab.experiment.paired import paired
from omnilab.experiment.reports.claims import Counts, Falls, judged
from omnilab.notebook.lessons import OneLine, counted, size
from omnilab.seams import FirstChunk
from omnilab.toggle import occupant_name
from omnilab.toggles.small_first_chunk import full_first_chunk

here = size()

# %% [markdown]
# ## An idea
#
# Code2Wav gets codes in chunks of 25 frames, 80 ms each. Two seconds have to be spoken before the first can be heard.
# `small_first_chunk` sends 4 frames first, and then 25: between the two a player may run dry. What if chunks *grow*?
#
# ```
# frames of chunk     0    1    2    3    4
# baseline           25   25   25   25   25
# small_first_chunk   4   25   25   25   25
# growing chunks      5   10   20   25   25
# ```
#
# ## The seam
#
# `omnilab/seams.py` has a type for each seam. That of `first_chunk` is a function: the chunk's id and the usual
# number of frames, to the frames of that chunk.

# %%
print(FirstChunk)
print("before:", occupant_name(recipes.BEFORE_1378.first_chunk), [full_first_chunk(chunk, 25) for chunk in range(5)])


# %%
def growing_chunks(chunk_id: int, chunk_frames: int) -> int:
    """Five frames, then twice as many each time, up to a full chunk."""
    return min(chunk_frames, 5 * 2**chunk_id)


print("mine:", [growing_chunks(chunk, 25) for chunk in range(5)])

MINE: Toggle[FirstChunk] = Toggle(
    name="growing_chunks",
    seam="first_chunk",
    baseline=full_first_chunk,
    optimized=growing_chunks,
    claim="the first audio comes earlier, for the first chunk waits for 5 frames and not for 25",
)
CLAIM = [Counts("talker/send/ids_in_chunk_0"), Falls("audio_ttfp_ms")]
MINE

# %% [markdown]
# ## Does it take part?
#
# The stages count; what fills a seam does not vouch for itself. If nothing differs here, the toggle took no part, and
# no clock can say otherwise.

# %%
pipe = here.open(recipes.BEFORE_1378, topology="processes")
workload = here.workload()
mine = recipe_with(MINE, base=recipes.BEFORE_1378)
before = pipe.run(workload)
pipe.apply(mine)
after = pipe.run(workload)
print("in force:", pipe.occupants()["talker"]["first_chunk"])
counted(off=before, on=after)

# %% [markdown]
# ## Same output?
#
# The toggle above promises everything: nothing was said of `exact`, and a promise is the default. `paired` holds it
# to that.

# %%
paired(pipe, recipes.BEFORE_1378, mine, workload, pairs=1)

# %% [markdown]
# If it failed the gate, that is the gate at work: Code2Wav decodes a window with its left context, and windows that
# begin elsewhere give other samples, some lost at each seam. Tokens and codes should be the same; the cell below
# looks. So the toggle may promise those two alone, and a listener has to judge the rest. Or it requires
# `stateful_vocode`, whose samples do not depend on where chunks begin.

# %%
MINE = replace(MINE, exact=frozenset({"tokens", "codes"}))
speeches = {}
for side, recipe in {"off": recipes.BEFORE_1378, "on": recipe_with(MINE, base=recipes.BEFORE_1378)}.items():
    pipe.apply(recipe)
    speeches[side] = pipe.speak("Tell me about rivers.", max_text_tokens=20, max_frames=60, ignore_eos=True, seed=7)
    print(MINE.name, side)
    display(speeches[side])
print("same tokens:", speeches["off"].token_ids == speeches["on"].token_ids)
print("same codes:", (speeches["off"].codes == speeches["on"].codes).all())
pipe.close()

# %% [markdown]
# ## Measurement
#
# The protocol, on the metric that the claim names. The report says *same work, other samples* where samples differ
# and nothing else does.

# %%
report = here.experiment(name="growing-chunks", toggles=[MINE], primary="audio_ttfp_ms").run(progress=OneLine())
report

# %% [markdown]
# ## Verdict

# %%
judged(report, MINE.name, MINE.claim, CLAIM)

# %% [markdown]
# ## A toggle that does nothing
#
# The same function under another name. It is slower or faster by chance; the counters say that it took no part.


# %%
def renamed(chunk_id: int, chunk_frames: int) -> int:
    """Do what the baseline does."""
    return full_first_chunk(chunk_id, chunk_frames)


nothing = replace(MINE, name="renamed", optimized=renamed, claim="a better name is faster")
control = here.experiment(name="renamed", toggles=[nothing], gate_prompts=None, blocks=3).run()
judged(control, nothing.name, nothing.claim, [Falls("wall_s")])

# %% [markdown]
# ## Keep it
#
# Move both functions and `TOGGLE` to `omnilab/toggles/growing_chunks.py` and add it to the list there;
# CONTRIBUTING.md says the rest. Or leave it in an experiment file of yours: `python -m omnilab.ablate mine.py` takes
# it from there.
