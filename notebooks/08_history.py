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
# # The releases of vLLM-Omni, replayed
#
# Each release filled the seams in its own way. The named recipes have the *costs* of what was shipped at these seams;
# not the defects, and not schedulers or kernels. Each is compared with the one before it, and `LIKE_0_14` with the
# baseline that followed it, so that a row says what one release changed.

# %%
from dataclasses import fields, replace

import pandas as pd
from IPython.display import SVG, display

from omnilab import recipes
from omnilab.ablate import load_experiment
from omnilab.experiment.plan import EXPERIMENTS
from omnilab.experiment.reports.figures import effects
from omnilab.notebook.lessons import OneLine, size
from omnilab.recipe import Recipe
from omnilab.toggle import occupant_name

here = size()
history = load_experiment(EXPERIMENTS / "history.py")
print(history.question)

# %% [markdown]
# ## What fills the seams
#
# | recipe | is |
# |---|---|
# | `LIKE_0_14` | everything on the engine's thread, the put too |
# | `BEFORE_1378` | the put on a sender's thread: the baseline here |
# | `AFTER_1378` | the four toggles on, nothing else |
# | `LIKE_0_16` | as shipped: with two changes that nobody listed, a receive loop that spins, a payload on every step |
# | `LIKE_0_30` | rows replaced and attached once; a condition wakes the receiver; the merge visits all again |
# | `BEST` | the cheapest occupant of every seam here, the default of `Pipeline.open` |

# %%
seams = [field.name for field in fields(Recipe)]
named = {name: [occupant_name(getattr(recipe, seam)) for seam in seams] for name, recipe in recipes.NAMED.items()}
table = pd.DataFrame(named, index=seams)[["LIKE_0_14", "BEFORE_1378", "AFTER_1378", "LIKE_0_16", "LIKE_0_30", "BEST"]]
table.where(table.ne(table["BEFORE_1378"], axis=0) | (table.columns == "BEFORE_1378"), "")

# %% [markdown]
# Blank: as in `BEFORE_1378`.
#
# ## One sentence, said by each
#
# Recipes change where the work is done, and how much; the words are the same. Samples may differ where chunks begin
# elsewhere.

# %%
pipe = here.open(recipes.BEFORE_1378)
said = {}
for name in table.columns:
    pipe.apply(recipes.recipe_named(name))
    said[name] = pipe.speak("Tell me about rivers.", max_text_tokens=12, max_frames=40, ignore_eos=True, seed=7)
pipe.close()
base = said["BEFORE_1378"]
display(base, said["BEST"])
pd.DataFrame(
    {
        "same tokens": {name: speech.token_ids == base.token_ids for name, speech in said.items()},
        "same codes": {name: bool((speech.codes == base.codes).all()) for name, speech in said.items()},
        "seconds": {name: speech.seconds for name, speech in said.items()},
    }
)

# %% [markdown]
# ## Measured
#
# `experiments/history.py` with this notebook's model and lengths. On a command line: `python -m omnilab.ablate
# experiments/history.py`.

# %%
report = replace(
    history,
    model=here.model,
    workload=here.workload(),
    blocks=here.blocks,
    topology=here.topology,
    gate_prompts=here.gate,
).run(progress=OneLine())
report

# %%
SVG(effects(report.findings, report.findings.primary))

# %% [markdown]
# What each release counted differently from the one it is compared with. Counts carry over to a GPU exactly; times do
# not.

# %%
for variant in report.findings.variants[1:]:
    print(f"{variant.name} against {variant.against}: {variant.verdict}")
    for moved in variant.counters[:6]:
        print(f"    {moved.what}: {moved.before:,.0f} -> {moved.after:,.0f}")
