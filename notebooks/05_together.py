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
# # Together: what is a toggle worth once another is on?
#
# Measured alone, a toggle gets the credit for all that it removes. Two toggles that remove the *same* work cannot
# both have it. `prefill_only_hidden_states` no longer sends the id lists; `shallow_merge` no longer visits their
# elements. So:
#
# | | lists are sent | lists are not sent |
# |---|---|---|
# | **every element visited** | all of the visits | hardly any: there is nothing left to visit |
# | **`dict.update`** | no visits | no visits |
#
# The change was merged with all four on, and one run. To say what each brought, all cells have to be measured.

# %%
from IPython.display import SVG, Markdown, display

from omnilab.experiment.checks.bundle import opened
from omnilab.experiment.reports.figures import two_by_two, waterfall
from omnilab.experiment.reports.report import Report
from omnilab.experiment.reports.words import TITLES, attribution_lines, sharing_lines
from omnilab.notebook.lessons import SEED_RUN, OneLine, size
from omnilab.toggles import THE_FOUR, prefill_only_hidden_states, shallow_merge

here = size()
PAIR = [prefill_only_hidden_states.TOGGLE, shallow_merge.TOGGLE]
display(*PAIR)

# %% [markdown]
# ## The 2 x 2
#
# A *factorial* tries every combination in every block. *Together over expected* is the measured effect of both over
# the product of the two alone: above 1 means that they bring less together, that they are *sub-additive*.

# %%
square = here.experiment(
    name="two-by-two",
    toggles=PAIR,
    design="factorial",
    workload=here.workload(here.long_len),
    primary="host_ms_per_step",
).run(progress=OneLine())
square


# %%
def interaction(report):
    """Show the first pair of a run: its 2 x 2 as a figure, then in words, with the counter that explains it."""
    found = report.findings.interactions[0]
    display(SVG(two_by_two(found, TITLES[found.metric])))
    display(Markdown(f"**{found.kind}**: {found.words}"))


interaction(square)

# %% [markdown]
# Hollow: where both would be if the effects multiplied. Below five blocks nothing is called an interaction, and a
# short answer has short lists: the law is in `elements_visited`. At the full length of the change's own test, kept
# from an hour of measuring:

# %%
with opened(SEED_RUN) as folder:
    hour = Report.load(folder)
interaction(hour)

# %% [markdown]
# ## The factorial of the four
#
# Sixteen cells. With that many, verdicts are on *main effects*: a toggle on against off, averaged over the other
# three. One main effect uses every trial of the run, so it is known better than any single cell.

# %%
factorial = here.experiment(name="factorial", toggles=THE_FOUR, design="factorial").run(progress=OneLine())
factorial

# %% [markdown]
# ## Shapley: sharing out the whole
#
# In which order were they turned on? Each order credits the shared work to whichever came first. The *Shapley value*
# is a toggle's worth averaged over all orders: values multiply up to the whole, and the least and the greatest over
# all orders say how much of that is a matter of order. What noise alone would spread is printed beside it.

# %%
if factorial.findings.attribution is None:
    print("no attribution: a cell is missing")
else:
    display(SVG(waterfall(factorial.findings)))
    display(Markdown("\n".join(f"- {line}" for line in attribution_lines(factorial.findings.attribution))))

# %% [markdown]
# Every pair, strongest first; then averaged over the other two:

# %%
Markdown("\n".join(f"- {line}" for line in sharing_lines(factorial.findings)))

# %% [markdown]
# ## What the hour showed
#
# Prefill-only, shallow merge, the two together and all four, at full length:

# %%
with opened(SEED_RUN) as folder:
    display(Report.load(folder))
