"""Designs: what is tried and what it is compared with; requirements and conflicts."""

import pytest

from omnilab.errors import BadInput, ToggleConflict, ToggleUnavailable
from omnilab.experiment.design import (
    DESIGNS,
    Variant,
    design_named,
    factorial,
    half_fraction,
    in_block,
    ladder,
    leave_one_out,
    named_after,
    one_at_a_time,
    refuse_conflicts,
)
from omnilab.toggle import Toggle


def toggle(name, seam=None, **more):
    return Toggle(name=name, seam=seam or name, baseline=len, optimized=max, claim="", **more)


A, B, C = toggle("a"), toggle("b"), toggle("c", requires=("b",))


def names(variants):
    return [(v.name, v.against) for v in variants]


def test_one_at_a_time():
    assert names(one_at_a_time((A, B))) == [("baseline", None), ("a", "baseline"), ("b", "baseline")]
    assert names(one_at_a_time((A, B, C)))[-1] == ("b + c", "b")


def test_leave_one_out_drops_dependents_on_both_sides():
    assert names(leave_one_out((A, B, C))) == [
        ("baseline", None),
        ("all", "baseline"),
        ("all - a", "all"),
        ("all - c", "all"),
        ("all - c - b", "all - c"),
    ]


def test_factorial_has_every_legal_combination():
    assert len(factorial((A, B))) == 4
    assert ("c", "baseline") not in names(factorial((A, B, C)))
    assert len(factorial((A, B, C))) == 6
    with pytest.raises(BadInput, match="at most"):
        factorial(tuple(toggle(str(i)) for i in range(7)))


def test_ladder_compares_with_the_rung_below():
    assert names(ladder((A, B))) == [("baseline", None), ("+ a", "baseline"), ("+ b", "+ a")]
    with pytest.raises(BadInput, match="c must come after b"):
        ladder((C, B))


def test_half_fractions_alternate_and_need_four_free_toggles():
    four = (A, B, toggle("e"), toggle("f"))
    variants = half_fraction(four)
    even, odd = ([v for v in variants if in_block("half-fraction", v, block)] for block in (0, 1))
    assert [len(v.toggles) % 2 for v in even] == [0] * 8
    assert [len(v.toggles) % 2 for v in odd if v.toggles] == [1] * 8
    assert len(odd) == 9  # the baseline is there for A/A
    assert all(in_block("factorial", v, block) for v in variants for block in (0, 1))
    with pytest.raises(BadInput, match="4 toggles or more, not 3"):
        half_fraction((A, B, C))
    with pytest.raises(BadInput, match="cannot leave out what toggles require"):
        half_fraction((A, B, C, toggle("e")))


SINGLE = {name: design for name, design in DESIGNS.items() if name != "half-fraction"}


@pytest.mark.parametrize("design", SINGLE.values(), ids=SINGLE)
def test_every_variant_but_the_first_differs_from_what_it_is_compared_with(design):
    variants = {v.name: v for v in design((A, B, C))}
    assert sum(not v.toggles for v in variants.values()) == 1
    for variant in variants.values():
        if variant.against is not None:
            assert variants[variant.against].toggles != variant.toggles
            assert {r for t in variant.toggles for r in t.requires} <= {t.name for t in variant.toggles}


def test_a_missing_requirement_is_named():
    with pytest.raises(ToggleUnavailable, match="c requires b"):
        one_at_a_time((A, C))


def test_two_on_one_seam_are_named_both():
    with pytest.raises(ToggleConflict, match="a and d both fill the seam a"):
        refuse_conflicts((A, toggle("d", seam="a")))


def test_unknown_designs_and_broken_lists():
    with pytest.raises(BadInput, match="one-at-a-time"):
        design_named("latin")
    with pytest.raises(BadInput, match="twice"):
        named_after([Variant("x"), Variant("x", (A,), "x")], "base")
    with pytest.raises(BadInput, match="exactly one"):
        named_after([Variant("x", (A,), "y")], "base")
    with pytest.raises(BadInput, match="'y'"):
        named_after([Variant("x"), Variant("z", (A,), "y")], "base")


def test_the_baseline_gets_the_recipes_name():
    assert names(named_after(one_at_a_time((A,)), "BEFORE_1378")) == [("BEFORE_1378", None), ("a", "BEFORE_1378")]


def test_what_a_variant_keeps_is_what_all_its_toggles_keep():
    loose = toggle("loose", exact=frozenset({"tokens", "codes"}), tolerance=60.0)
    variant = Variant("both", (A, loose), "baseline")
    assert variant.exact == {"tokens", "codes"}
    assert variant.tolerance == 60.0
    assert Variant("baseline").exact == {"tokens", "codes", "samples"}
