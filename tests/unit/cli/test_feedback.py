from __future__ import annotations

import json
import re
import stat

import pytest

from rlhf.data.read import read_rows
from rlhf.errors import ConfigError, DataError
from rlhf.feedback.imports import left_out_words

PAIRS = [{"id": f"t{n}", "prompt": f"q{n}", "completion_a": "x", "completion_b": f"y{n}"} for n in range(6)]
GOLD = [{"id": f"g{n}", "prompt": f"g{n}", "chosen": "right", "rejected": "wrong"} for n in range(2)]


@pytest.fixture
def call(feedback):
    return feedback


def all_simulated(number):
    """What `export` says before anything else where nobody but simulated annotators judged."""
    return f"! {number} of {number} judgments are simulated (rlhf feedback simulate) and no opinion of anybody's.\n"


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_from_samples_in_a_pipe_to_soft_labels_that_the_reward_stage_reads(call, tmp_path):
    from rlhf.store import AssignmentRules, PreferenceStore

    samples = [
        {"id": f"t{n}", "prompt": f"q{n}", "completion": f"{name} {n}", "model": name}
        for n in range(6)
        for name in ("one", "two")
    ]
    assert call("import", "-", stdin=jsonl(samples)) == "6 tasks added (read as 'rows').\n"
    (tmp_path / "gold.jsonl").write_text(jsonl(GOLD))
    assert call("import", "gold.jsonl", "--gold").startswith("2 tasks added")
    with PreferenceStore("annotations.db", rules=AssignmentRules(overlap=3, gold_frac=0.3), seed=1):
        pass
    assert call("simulate", "--good", 3, "--careless", 0, "--seed", 1).startswith("2")
    assert "sim-good-0" in call("report")
    assert json.loads(call("report", "--json"))
    said = call("export", "pairs.jsonl", "--aggregate", "dawid-skene", "--min-judgments", 3)
    assert said.startswith(all_simulated(24))
    assert "not checked" in said, "six items are too few to check probabilities on"
    assert said.endswith("6 rows written to pairs.jsonl.\n")
    rows = list(read_rows("pairs.jsonl"))
    assert {row.kind for row in rows} == {"preference"}
    assert all(
        0.5 < row.columns["label_probability"] < 1 and row.columns["chosen_model"] in ("one", "two") for row in rows
    )


def test_a_store_goes_to_a_file_and_comes_back(call, tmp_path):
    (tmp_path / "pairs.jsonl").write_text(jsonl(PAIRS))
    (tmp_path / "gold.jsonl").write_text(jsonl(GOLD))
    call("import", "pairs.jsonl", "--batch", "first")
    call("import", "gold.jsonl", "--gold")
    call("simulate", "--good", 1, "--careless", 0, "--limit", 3)
    assert call("export", "all.jsonl", "--unjudged") == f"{all_simulated(3)}8 rows written to all.jsonl.\n"
    assert stat.S_IMODE((tmp_path / "all.jsonl").stat().st_mode) == 0o600, "it names annotators"
    assert call("import", "all.jsonl", "--store", "again.db") == "8 tasks added (read as 'rows').\n3 judgments added.\n"
    assert (
        call("import", "all.jsonl", "--store", "again.db")
        == "0 tasks added, 8 there already (read as 'rows').\n0 judgments added, 3 there already.\n"
    )
    call("export", "again.jsonl", "--unjudged", "--store", "again.db")
    assert sorted((tmp_path / "again.jsonl").read_text().splitlines()) == sorted(
        (tmp_path / "all.jsonl").read_text().splitlines()
    )
    call("import", "all.jsonl", "--store", "bare.db", "--no-judgments")
    with pytest.raises(DataError, match="nothing to export yet"):
        call("export", "none.jsonl", "--store", "bare.db")


def test_rows_go_through_a_folder_of_datasets_and_back(call, tmp_path):
    import datasets

    (tmp_path / "pairs.jsonl").write_text(jsonl(PAIRS))
    call("import", "pairs.jsonl")
    call("simulate", "--good", 2, "--careless", 0, "--limit", 4)
    assert call("export", "saved", "--format", "datasets") == (
        f"{all_simulated(4)}left out: 2 tasks without a judgment (--unjudged writes them, too, to .jsonl or .json).\n"
        "4 rows written to saved.\n"
    )
    assert set(datasets.load_from_disk("saved")["task_id"]) == {f"t{n}" for n in range(4)}
    assert call("import", "saved", "--store", "again.db") == "4 tasks added (read as 'rows').\n4 judgments added.\n"
    call("export", "a.jsonl")
    call("export", "b.jsonl", "--store", "again.db")
    assert sorted((tmp_path / "a.jsonl").read_text().splitlines()) == sorted(
        (tmp_path / "b.jsonl").read_text().splitlines()
    )
    with pytest.raises(DataError, match="saved is there already"):
        call("export", "saved", "--format", "datasets")
    said = call("export", "soft", "--format", "datasets", "--aggregate", "majority")
    assert said == f"{all_simulated(4)}left out: 2 tasks without a judgment.\n4 rows written to soft.\n"
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("layout", ["label-studio", "argilla"])
def test_judgments_travel_through_another_tool(layout, call, tmp_path):
    (tmp_path / "pairs.jsonl").write_text(jsonl(PAIRS))
    call("import", "pairs.jsonl")
    call("simulate", "--good", 2, "--careless", 0)
    name = "out.json" if layout == "label-studio" else "out"
    said = call("export", name, "--format", layout)
    assert said == f"{all_simulated(6)}6 tasks with 6 judgments written to {name}.\n"
    assert call("import", name, "--store", "again.db") == f"6 tasks added (read as '{layout}').\n6 judgments added.\n"
    call("export", "a.jsonl")
    call("export", "b.jsonl", "--store", "again.db")
    assert sorted((tmp_path / "a.jsonl").read_text().splitlines()) == sorted(
        (tmp_path / "b.jsonl").read_text().splitlines()
    )


SAID = {"preference": "a", "annotator_id": "ann"}


def test_bad_rows_stop_the_import_or_are_listed(call, tmp_path):
    (tmp_path / "rows.jsonl").write_text(jsonl(PAIRS[:1]) + "{oops\n")
    with pytest.raises(DataError, match=r"rows\.jsonl:2"):
        call("import", "rows.jsonl")
    assert "left out: rows.jsonl:2: " in call("import", "rows.jsonl", "--skip-bad")


def test_what_two_models_answered_alike_is_told_in_one_line(call, tmp_path):
    for name in ("one", "two"):
        rows = [{"prompt": f"q{n}", "completion": f"answer {n}" if n else name, "model": name} for n in range(31)]
        (tmp_path / f"{name}.jsonl").write_text(jsonl(rows))
    assert call("import", "one.jsonl", "two.jsonl") == (
        "1 task added (read as 'rows').\nleft out, 30 times: both completions say the same, so there is nothing to judge "
        "(one.jsonl:2, one.jsonl:3, one.jsonl:4 and 27 more).\n"
    )


def test_reasons_of_thousands_of_rows_fit_a_screen():
    from rlhf.data.contracts import BadRow

    rows = [BadRow(f"x:{n}", f"reason {n % 25}.") for n in range(2000)]
    said = left_out_words([*rows, BadRow("y:1", "alone.")])
    assert said[0] == "left out, 80 times: reason 0 (x:0, x:25, x:50 and 77 more)."
    assert len(said) == 21
    assert said[-1] == "... and 401 more left out, for 6 other reasons."
    assert left_out_words(rows[:2]) == ["left out: x:0: reason 0.", "left out: x:1: reason 1."]
    assert left_out_words([]) == []


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"seconds": -5}, "the judgment of task 't1' by 'ann': seconds is -5.0; a time is at least 0"),
        ({"flags": ["ugly"]}, "the judgment of task 't1' by 'ann': There is no flag 'ugly'"),
        ({"annotator_id": "a\nb"}, "the judgment of task 't1' by 'a\\nb': an annotator's name has 1 to 64 printable"),
        ({"id": "t0", "prompt": "another"}, "the store knows the id 't0' with another prompt ('q0')"),
    ],
)
def test_what_can_not_be_kept_is_told_by_file_and_line_and_nothing_of_the_file_comes_in(bad, words, call, tmp_path):
    (tmp_path / "known.jsonl").write_text(jsonl(PAIRS[:1]))
    call("import", "known.jsonl")
    (tmp_path / "rows.jsonl").write_text(jsonl([PAIRS[2] | SAID, PAIRS[1] | SAID | bad]))
    with pytest.raises(DataError, match=rf"^rows\.jsonl:2: {re.escape(words)}"):
        call("import", "rows.jsonl")
    call("export", "before.jsonl", "--unjudged")
    assert [row.columns["task_id"] for row in read_rows("before.jsonl")] == ["t0"]
    said = call("import", "rows.jsonl", "--skip-bad")
    assert said.startswith("1 task added (read as 'rows').\n1 judgment added.\n")
    assert f"left out: rows.jsonl:2: {words}" in said


def test_answers_that_differ_are_told_apart_from_those_that_are_there(call, tmp_path):
    def bring(*preferences):
        (tmp_path / "rows.jsonl").write_text(jsonl([PAIRS[0] | SAID | {"preference": one} for one in preferences]))
        return call("import", "rows.jsonl").partition("\n")[2]

    told = "one person answered one task more than once, and the last answer counts"
    assert bring("a", "b") == f"2 judgments added.\n1 of those added is a correction: {told}.\n"
    assert bring("a", "b") == "0 judgments added, 2 there already.\n"
    assert bring("tie") == (
        "0 judgments added, 1 there already.\n"
        "! 1 of those there already says something else here, and the store's answers stay (the first: rows.jsonl:1).\n"
    )


def test_an_export_says_what_it_leaves_out_because_nobody_judged_it(call, tmp_path):
    from rlhf.store import PreferenceStore, Response, Task, TaskKind

    (tmp_path / "rows.jsonl").write_text(jsonl([PAIRS[0] | SAID, *PAIRS[1:3]]))
    call("import", "rows.jsonl")
    assert call("export", "out.jsonl") == (
        "left out: 2 tasks without a judgment (--unjudged writes them, too, to .jsonl or .json).\n1 row written to out.jsonl.\n"
    )
    assert call("export", "all.jsonl", "--unjudged") == "3 rows written to all.jsonl.\n"
    with PreferenceStore("annotations.db") as store:
        store.add_tasks([Task(id="mute", kind=TaskKind.BINARY, prompt="", responses=[Response(text="x")])])
    said = call("export", "all.jsonl", "--unjudged")
    assert "left out: 1 task that nobody judged: their prompt is empty" in said
    assert "(the first: 'mute')" in said
    assert call("import", "all.jsonl", "--store", "new.db").startswith("3 tasks added"), "what is written can be read"


def test_an_import_warns_of_nothing_that_is_kept_and_names_tasks_that_would_not_be_asked_again(call, tmp_path):
    from rlhf.store import AssignmentRules, PreferenceStore

    rows = [PAIRS[0] | {"annotator_id": who, "preference": "a"} for who in ("ann", "bob", "cem")]
    (tmp_path / "even.jsonl").write_text(jsonl(rows))
    assert call("import", "even.jsonl", "--store", "even.db") == "1 task added (read as 'rows').\n3 judgments added.\n"
    (tmp_path / "rows.jsonl").write_text(jsonl([*rows, PAIRS[1] | SAID]))
    told = "1 task of the file has fewer judgments than others"
    said = call("import", "rows.jsonl")
    assert told in said
    assert "--overlap 3" in said
    assert "!" not in said
    with PreferenceStore("annotations.db", rules=AssignmentRules(overlap=3)):
        pass
    call("export", "out.jsonl")
    assert told not in call("import", "out.jsonl"), "this store asks for three"
    assert "1 has the 3 judgments wanted, 1 some" in call("report")
    assert told in call("import", "out.jsonl", "--store", "again.db"), "a new store wants one"
    assert told not in call("import", "out.jsonl", "--store", "third.db", "--no-judgments")


def test_an_export_tells_tasks_that_nobody_judged_from_those_that_only_the_unqualified_did(call, tmp_path):
    from rlhf.store import PreferenceStore

    def said(task, **by):
        return [PAIRS[task] | {"annotator_id": who, "preference": side} for who, side in by.items()]

    gold = {"prompt": "g", "chosen": "x", "rejected": "y", "gold": True}
    golds = [gold | {"annotator_id": who, "id": "g"} for who in ("ann", "bob")]
    rows = [
        *golds,
        *said(0, ann="a", bob="a", cem="b"),
        *said(1, ann="b", bob="b"),
        *said(2, cem="a"),
        *said(3, cem="b"),
        *PAIRS[4:5],
    ]
    (tmp_path / "rows.jsonl").write_text(jsonl(rows))
    call("import", "rows.jsonl")
    bar = ("--qualified", "--min-items", 1)
    told = call("export", "out.jsonl", *bar)
    assert "left out: cem: agreement 0.00 of at least 0.7; gold accuracy not measured" in told
    assert "left out: 2 tasks that only annotators who are not qualified judged.\n" in told
    assert "left out: 1 task without a judgment (--unjudged writes them, too, to .jsonl or .json).\n" in told
    told = call("export", "soft.jsonl", *bar, "--aggregate", "majority")
    assert (
        "left out: 2 tasks that only annotators who are not qualified judged.\nleft out: 1 task without a judgment.\n"
        in told
    )
    assert "2 rows written" in told
    told = call("export", "all.jsonl", *bar, "--unjudged")
    assert "written without a judgment: 2 tasks that only annotators who are not qualified judged.\n" in told
    assert "left out: 1 task" not in told
    with PreferenceStore("annotations.db") as store:
        assert len(store.judgments("cem")) == 3
    assert "not qualified judged" not in call("export", "raw.jsonl")


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (
            ("report", "--store", "annotation.db"),
            ConfigError,
            "There is no store annotation.db. Did you mean 'annotations.db'",
        ),
        (
            ("export", "x.jsonl", "--format", "shp"),
            ConfigError,
            "'shp' is only read; what can be written: rows, datasets, label-studio, argilla",
        ),
        (
            ("export", "x.json", "--format", "label-studio", "--aggregate", "majority"),
            ConfigError,
            "leave --aggregate out",
        ),
        (("export", "x.jsonl", "--aggregate", "dawid"), ConfigError, "Did you mean 'dawid-skene'"),
        (("export", "x.jsonl", "--qualified"), DataError, "Of 1 annotator none is qualified"),
        (("export", "x.jsonl", "--kind", "binary"), DataError, "no task to export; its kinds are: pairwise"),
        (
            ("export", "x.parquet", "--unjudged"),
            ConfigError,
            r"would be a table.*write \.jsonl or \.json for --unjudged",
        ),
        (("export", "x", "--format", "datasets", "--unjudged"), ConfigError, "x would be a table"),
        (("export", "x.parquet", "--batch", "no"), DataError, r"its batches: \(none\)"),
        (("export", "x.jsonl", "--events"), DataError, "nothing to export yet"),
        (("invite", "ann", "--url", "label.example.org"), ConfigError, "wanted an address such as https://"),
        (("simulate", "--good", "0", "--careless", "0"), ConfigError, "The crowd is empty"),
        (("sample-size", "--accuracy", "0.4"), ConfigError, "find better ones"),
        (("sample-size", "--accuracy", "0.5", "--overlap", "3"), ConfigError, "no more than a coin"),
    ],
)
def test_what_can_not_be_done_is_said_with_what_to_do(words, error, message, call, tmp_path):
    (tmp_path / "pairs.jsonl").write_text(jsonl(PAIRS))
    call("import", "pairs.jsonl")
    call("simulate", "--good", 1, "--careless", 0, "--limit", 2)
    with pytest.raises(error, match=message):
        call(*words)


def test_an_invitation_is_a_link_to_the_server_it_is_for(call):
    call("import", "-", stdin=jsonl(PAIRS))
    assert call("invite", "ann", "--url", "https://label.example.org").startswith(
        "https://label.example.org/join?token="
    )


def test_a_plan_counts_what_it_says(call):
    plan = json.loads(
        call(
            "sample-size",
            "--difference",
            0.1,
            "--tie-frac",
            0,
            "--accuracy",
            0.8,
            "--wanted-accuracy",
            0.85,
            "--price",
            2,
            "--response-price",
            0,
            "--json",
        )
    )
    # three at 80 %: 0.8^3 + 3 * 0.8^2 * 0.2 = 0.896; pairs times three judgments times 2
    assert (plan["judgments_per_pair"], round(plan["majority_accuracy"], 3)) == (3, 0.896)
    assert plan["judgments"] == 3 * plan["pairs"]
    assert plan["cost"] == 2 * plan["judgments"]
    assert plan["detectable_difference"] == pytest.approx(0.1, abs=0.001)
    # a true difference of .1 is seen as (2 * .896 - 1) .1 = .0792: ((1.95996 * .5 + .84162 * .49369) / .0792)^2 = 310.9
    assert plan["pairs"] == 311
    assert plan["overlaps"][1] == {
        "judgments_per_pair": 3, "majority_accuracy": plan["majority_accuracy"], "pairs": 311, "judgments": 933, "cost": 1866.0,
    }  # fmt: skip
    assert plan["reward_accuracy"] is None


def test_a_plan_says_what_it_did_not_compute_and_how_to_measure_it(call):
    text = " ".join(call("sample-size").split())
    assert "judgments of each 7 --wanted-accuracy is 0.9: their majority is right" in text
    assert "at 0.50 each (--price); " in text
    prices = [float(cost.replace(",", "")) for cost in re.findall(r"judgments cost ([\d,.]+\d)", text)]
    assert len(prices) == 5
    assert prices == sorted(prices), (
        "fewer judgments of each are the cheaper way to the same difference, and that is seen"
    )
    assert "--wanted-accuracy is" not in call("sample-size", "--overlap", 3)
    assert "Accuracy of the reward model: nothing was measured" in text
    assert "a perfect one is right 92.9 % of the time" in text
    assert "give --measured-overlap 7" in text, "or the points would be reckoned as judged once"
    assert "Cheaper: 1 judgment of each of 2,824 pairs finds the same for 1,524.96" in text
    assert "Cheaper:" not in call("sample-size", "--overlap", 1)
    assert "Cheaper:" not in call("sample-size", "--pairs", 100), "other pairs would not find the same"
    assert "a rule of thumb" in text
    assert "inventory" not in text
    asked = call("sample-size", "--reward-accuracy", "0.75").splitlines()
    assert (
        "  rlhf reward model=MODEL data=pairs.jsonl eval_data=held_out.jsonl limit=250 max_steps=STEPS learning_rate=RATE "
        "-o runs/quarter" in asked
    )
    assert any(line.startswith("  rlhf feedback sample-size --measured 250:ACCURACY") for line in asked)


MEASURED = ("--measured", "250:0.6", "--measured", "500:0.65", "--measured", "1000:0.685", "--held-out", "4000")


def test_a_plan_says_how_many_pairs_and_how_much_overlap_reach_an_accuracy(call):
    said = json.loads(call("sample-size", *MEASURED, "--accuracy", 0.8, "--reward-accuracy", 0.7, "--json"))[
        "reward_accuracy"
    ]
    one, three = said["overlaps"][:2]
    assert said["held_out_accuracy"] == 0.8
    assert said["ceiling"]["high"] <= 0.8
    assert 1000 < one["pairs"] < 3000, "the last doubling brought .035, and half of that is wanted"
    assert 1000 < one["low"] < one["pairs"]
    assert one["high"] is None, "a few in a hundred of the curves that fit end below"
    assert 0.9 < said["reach_frac"] < 0.975
    # labels right .8 and .896 of the time are worth .6^2 and .792^2
    assert three["pairs"] == pytest.approx(one["pairs"] * 0.36 / 0.627264, abs=1.5)
    assert (one["is_measured"], one["is_cheapest"], three["is_cheapest"]) == (True, True, False)
    assert one["cost"] == pytest.approx(one["pairs"] * 0.54)
    text = call("sample-size", *MEASURED, "--accuracy", 0.8, "--reward-accuracy", 0.7)
    assert f"  1  80.0\u202f% right  {one['pairs']:,} pairs [{one['low']:,}, " in text
    assert "<- as measured, the cheapest" in text
    # the same points measured with five judgments of each: the others are held against those
    five = json.loads(call("sample-size", *MEASURED, "--measured-overlap", 5, "--reward-accuracy", 0.7, "--json"))[
        "reward_accuracy"
    ]
    assert [row["judgments_per_pair"] for row in five["overlaps"] if row["is_measured"]] == [5]
    assert five["overlaps"][0]["pairs"] > 2000


def test_a_plan_says_that_an_accuracy_can_not_be_reached_and_that_points_are_on_no_curve(call):
    beyond = call("sample-size", *MEASURED, "--accuracy", 0.8, "--reward-accuracy", 0.85)
    assert "0.85 is not reachable by such pairs" in beyond
    assert "the ceiling is 0.7" in beyond
    assert "Infinity" not in call("sample-size", *MEASURED, "--reward-accuracy", 0.74, "--json")
    late = ("--measured", "250:0.5", "--measured", "500:0.52", "--measured", "1000:0.75:2000", "--held-out", "2000")
    assert "! The points lie on no such curve" in call("sample-size", *late, "--held-out-accuracy", 1)


def points_of(*points):
    return [word for point in points for word in ("--measured", point)] + ["--held-out", "400"]


def test_points_no_better_than_a_coin_are_told_and_alone_refused(call):
    coins = points_of("250:0.507", "500:0.52", "1000:0.525")
    with pytest.raises(ConfigError, match=r"accuracies .*learning_rate.*steps"):
        call("sample-size", *coins, "--accuracy", 0.9, "--reward-accuracy", 0.8)
    words = call("sample-size", *points_of("250:0.507", "500:0.52", "1000:0.66"), "--accuracy", 0.9)
    assert "! After 250, 500 pairs the model does not differ from a coin" in words
    assert "told apart from a coin" not in call("sample-size", *points_of("250:0.6", "500:0.65"), "--accuracy", 0.9)


def test_what_a_third_of_the_curves_reach_is_doubtful_and_a_fall_is_told(call):
    said = call("sample-size", *points_of("250:0.70", "500:0.66"), "--held-out-accuracy", 1, "--reward-accuracy", 0.75)
    assert "0.75 is doubtful with such pairs: 69\u202f% of the curves that fit never come so far, 31\u202f% do" in said
    assert (
        "! Accuracy fell from 0.700 after 250 pairs to 0.660 after 500; so few held-out pairs explain it by chance"
        in said
    )
    assert "(--held-out-accuracy), and nothing" in said
    far = call("sample-size", *points_of("250:0.80", "500:0.60"), "--held-out-accuracy", 1)
    assert "chance of the held-out pairs does not explain it" in far
    assert "Accuracy fell" not in call("sample-size", *points_of("250:0.66", "500:0.70"))


def test_a_curve_below_what_was_measured_says_why_and_whence_the_labels_are_known(call):
    points = points_of("250:0.62", "500:0.66", "1000:0.70")
    said = call("sample-size", *points, "--accuracy", 0.75)
    assert "after 1,000 pairs  0.68" in said
    assert "is less than the 0.700 measured after 1,000" in said
    assert "(one judgment of each; --measured-overlap or --held-out-accuracy say otherwise)" in said
    assert "(the majority of 5 judgments of each;" in call("sample-size", *points, "--measured-overlap", 5)
    assert "is less than" not in call("sample-size", *points, "--held-out-accuracy", 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--measured", "500"), "wanted PAIRS:ACCURACY such as 500:0.64"),
        (
            ("--measured", "500:0.64", "--measured", "900:0.7"),
            "--measured 500:0.64 does not say on how many held-out pairs",
        ),
        (("--measured", "500:0.64:400"), "at least two different numbers of pairs"),
        (("--held-out", "400"), "--held-out says how --measured was measured"),
        (("--measured", "250:0.9:400", "--measured", "500:0.9:400"), "no model can agree with them more often"),
    ],
)
def test_points_of_a_plan_that_say_nothing_are_refused(words, message, call):
    with pytest.raises(ConfigError, match=message):
        call("sample-size", *words)


def test_gold_answers_of_tasks_that_are_there_are_not_taken_and_that_is_said(call, tmp_path):
    (tmp_path / "gold.jsonl").write_text(jsonl(GOLD))
    call("import", "gold.jsonl")
    said = call("import", "gold.jsonl", "--gold")
    assert "0 tasks added, 2 there already" in said
    assert "! 2 gold answers of 2 gold rows not taken" in said
    assert "ids of their own" in said
    assert "(the first: 'g0')" in said
    call("import", "gold.jsonl", "--gold", "--store", "new.db")
    assert "!" not in call("import", "gold.jsonl", "--gold", "--store", "new.db"), "the same answer again"


def test_a_table_refuses_what_it_can_not_give_back(call, tmp_path):
    row = PAIRS[0] | {"completion_a": "x\0y", "preference": "a", "annotator_id": "ann"}
    (tmp_path / "rows.jsonl").write_text(jsonl([row]))
    call("import", "rows.jsonl")
    with pytest.raises(DataError, match=r"row 1 .*NUL.*CSV"):
        call("export", "out.csv")
    assert not (tmp_path / "out.csv").exists()
    call("export", "out.jsonl")
    assert next(iter(read_rows("out.jsonl"))).completion_a == "x\0y"


def test_the_models_column_of_ultrafeedback_survives_the_way_through_a_store(call, tmp_path):
    rated = {"honesty": {"Rating": "4"}}
    completions = [{"model": name, "response": name, "annotations": rated} for name in ("m1", "m2")]
    row = {"source": "flan", "instruction": "q", "models": ["m1", "m2"], "completions": completions}
    (tmp_path / "ultra.jsonl").write_text(jsonl([row]))
    call("import", "ultra.jsonl")
    call("export", "out.jsonl")
    call("import", "out.jsonl", "--store", "new.db")
    call("export", "again.jsonl", "--store", "new.db")
    assert (tmp_path / "out.jsonl").read_text() == (tmp_path / "again.jsonl").read_text()
    assert json.loads((tmp_path / "out.jsonl").read_text())["models"] == ["m1", "m2"]


def test_formats_are_listed(call):
    actual = {row["name"]: (row["import"], row["export"]) for row in json.loads(call("formats", "--json"))}
    assert actual["rows"] == actual["label-studio"] == actual["openai"] == (True, True)
    assert actual["nectar"] == (True, False)
