"""A report shows itself in a notebook: the verdict table, its sentences, escaped; and one line elsewhere."""

from __future__ import annotations


def test_a_report_shows_its_verdicts(small, script, tmp_path):
    planted = script(factors={"shallow_merge": 0.5})
    experiment = small(
        toggles=["shallow_merge"], blocks=5, question="<script>alert(1)</script> Does it pay?", gate_prompts=None
    )
    report = experiment.run(out=tmp_path / "run", open_pipeline=planted.open)
    html = report._repr_html_()
    assert "shallow_merge" in html and ">faster<" in html
    assert "elements_visited" in html and str(tmp_path / "run" / "report.html") in html
    assert "<script" not in html and "&lt;script&gt;alert(1)&lt;/script&gt; Does it pay?" in html
    assert repr(report) == f"<Report {tmp_path / 'run'}: shallow_merge: faster>"
