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
# # Traces: where the time went
#
# Every trial keeps its *spans*: what each loop of each stage did, when, for which request and chunk. Nothing has to
# be measured again to look at them. This notebook makes one small run, opens it four ways, and profiles the same
# workload once.
#
# | | shows | needs |
# |---|---|---|
# | timeline | loops, spans and chunks of one or two trials | this notebook |
# | critical path | what a request waited for, place by place | this notebook |
# | TensorBoard | verdicts, stages, timelines, sounds of a run | `pip install 'omnilab[trace]'` |
# | Perfetto | one trace with arrows; SQL | a browser and the network, or Chrome's own viewer |
# | py-spy, torch.profiler | lines of Python; operations of torch | separate passes, never mixed with timed trials |

# %%
import atexit
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pandas as pd
from IPython.display import Code, IFrame, Markdown, display

from omnilab.errors import BadInput
from omnilab.notebook import Timeline
from omnilab.notebook.lessons import OneLine, size
from omnilab.profile.chrome import from_run, variants_of, write_trace
from omnilab.profile.files import MERGED, trace_folder
from omnilab.profile.queries import BUSY, run_queries
from omnilab.toggles import prefill_only_hidden_states

here = size()
TOGGLE = prefill_only_hidden_states.TOGGLE
scratch = tempfile.TemporaryDirectory(prefix="omnilab-traces-")
atexit.register(scratch.cleanup)
run = Path(scratch.name) / "run"
experiment = here.experiment(name="traces", toggles=[TOGGLE], blocks=3, workload=here.workload(here.long_len))
report = experiment.run(out=run, progress=OneLine())
variants_of(run)

# %% [markdown]
# ## The timeline
#
# A row a loop, a bar a span, a curve a chunk from the `put` that sent it to the `get` that took it. Wheel: zoom at
# the pointer; drag: move; click: keep the details. *Table* gives the sums of the window that is shown. Finer spans
# come from the kernel as one zooms.

# %%
spans = {name: from_run(run, name) for name in ("BEFORE_1378", TOGGLE.name)}
print({name: f"{len(frame):,} spans" for name, frame in spans.items()})
Timeline.of(*spans.items(), most=4000)

# %% [markdown]
# What is wide at the end of the upper trial and not in the lower one? The same as a table:

# %%
took = {}
for name, frame in spans.items():
    ms = (frame["end_ns"] - frame["start_ns"]) / 1e6
    took[name] = ms.groupby([frame["stage"] + "/" + frame["thread"], frame["name"]], observed=True).sum()
table = pd.DataFrame(took).fillna(0).round(1)
table.loc[(table.max(axis=1) - table.min(axis=1)).nlargest(8).index]

# %% [markdown]
# ## The critical path
#
# At each moment a request waits for one stage or edge. What it did not wait for can be made faster without anyone
# noticing.

# %%
for held in report.waited.held:
    if held.variant in spans:
        most = ", ".join(f"{place} {share:.0%}" for place, share in list(held.shares.items())[:4])
        print(f"{held.variant}, until {held.until}: {held.ms:,.0f} ms; {most}")

# %% [markdown]
# ## TensorBoard
#
# Our tab *omnilab* needs nothing but the run folder and no network: verdicts, time by stage, timelines of any two
# trials, sounds, traces. The server below is a process of this notebook and ends with it. In a terminal: `tensorboard
# --logdir RUN`.

# %%
log = Path(scratch.name) / "tensorboard.txt"
with open(log, "w") as said:
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", str(run), "--port", "0", "--host", "127.0.0.1"],
        stderr=said,
    )
atexit.register(server.terminate)
address, deadline = None, time.monotonic() + 120
while address is None and server.poll() is None and time.monotonic() < deadline:
    time.sleep(0.2)
    address = re.search(r"http://\S+", log.read_text())
if address is None:
    print("TensorBoard did not start: pip install 'omnilab[trace]'", log.read_text()[-1000:], sep="\n")
else:
    page = f"{address.group()}#omnilab"
    display(Markdown(f"[{page}]({page})"), IFrame(page, width="100%", height=700))

# %% [markdown]
# ## Perfetto
#
# `python -m omnilab.trace RUN` writes a trace a variant; here is one. Open it at <https://ui.perfetto.dev>, *Open
# trace file*: it is read in your browser and goes nowhere. `chrome://tracing` in Chrome opens it without a network.

# %%
path = trace_folder(run, "BEFORE_1378") / MERGED
metadata = write_trace(path, spans["BEFORE_1378"], trial="BEFORE_1378")
print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {metadata['spans']:,} spans, {metadata['arrows']:,} arrows")

# %% [markdown]
# Perfetto answers SQL. *Busy per stage*, to paste into *Query (SQL)*:

# %%
Code(BUSY, language="sql")

# %% [markdown]
# From Python, where the package `perfetto` and its program are there:

# %%
try:
    for answer in run_queries(path):
        print(*answer.lines(), sep="\n")
except BadInput as missing:
    print(f"not run here: {missing}")

# %% [markdown]
# ## py-spy and torch.profiler
#
# Spans say *which part*; a sampling profiler says *which line*. Each is a pass of its own over a small workload, and
# says what it cost beside the run without it: no number of a verdict comes from one.

# %%
profiles = Path(scratch.name) / "profiles"
asked = ["--model", here.model, "--recipe", "BEFORE_1378", "--passes", "torch,pyspy", "--out", str(profiles)]
asked += ["--input-len", str(here.input_len), "--output-len", str(here.output_len), "--frames", str(here.output_len)]
done = subprocess.run([sys.executable, "-m", "omnilab.profile", *asked], capture_output=True, text=True, check=False)
print(done.stdout[-3000:], done.stderr[-1000:] if done.returncode else "")

# %% [markdown]
# A `*.speedscope.json` is one flame graph a thread: drop it on <https://www.speedscope.app>, or on its page offline
# (npm package speedscope). It is plain JSON too. Which functions did the threads of the Talker stand in?


# %%
def hottest(file, most=4):
    """Return the functions at the tip of the stack that were sampled most, a row a thread and function."""
    sampled = json.loads(file.read_text())
    frames, rows = sampled["shared"]["frames"], []
    for profile in sampled["profiles"]:
        tips = Counter(stack[-1] for stack in profile["samples"] if stack)
        for tip, count in tips.most_common(most):
            frame = frames[tip]
            place = f"{Path(frame['file']).name}:{frame['line']}"
            rows.append((profile["name"], frame["name"], place, f"{count / max(1, len(profile['samples'])):.0%}"))
    return pd.DataFrame(rows, columns=["thread", "function", "where", "of its samples"])


files = sorted(profiles.glob("flame/*talker*.speedscope.json"))
if files:
    display(*[hottest(file) for file in files])
else:
    print("py-spy gave no file; what it said stands above")

# %% [markdown]
# Everything above lies in a folder that is removed with the kernel. To keep it: `python -m omnilab.profile --out
# DIR`.
