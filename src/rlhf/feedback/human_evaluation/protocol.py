"""People comparing models: blinded tasks in, judgments out, each decoded by a key that was kept.

    protocol = HumanEvalProtocol(kind="pairwise", seed=7)
    tasks = protocol.build_tasks(prompts, {"sft": [...], "ppo": [...]})
    protocol.open(store, tasks)                        # judged on our page, or
    protocol.export(tasks, "tasks.jsonl", "key.jsonl")    # on any other; then protocol.read("judged.jsonl", "key.jsonl")
    print(protocol.analyze(store).to_text())

`rlhf feedback compare` does the same from the command line.

Which completion comes first is drawn for every task, and balanced: of the tasks that compare the same models on the same
criterion each model is first in equally many, give or take one. The order *is* the task's, so a judgment can always be decoded.

Completions that are the same to the letter are not shown to anybody: of two that can't differ an annotator could report only
a habit, such as liking what comes first. They are ties known in advance, and the results count them so.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlhf.config.guidelines import AnnotationGuideline
from rlhf.data.contracts import RowError, Text
from rlhf.errors import ConfigError, DataError, check_type, look_up
from rlhf.feedback.human_evaluation.criteria import CRITERIA, KINDS, OVERALL, Judged
from rlhf.files import private_files, write_jsonl
from rlhf.seeds import derive_seed

if TYPE_CHECKING:
    from rlhf.feedback.human_evaluation.results import HumanEvaluation
    from rlhf.store import PreferenceStore, Task
    from rlhf.store.record import Recorded

SETTING = "evaluations"
"""Of a store: name -> how it is asked."""
IDENTICAL = "identical completions"
"""Of a store: name -> id -> what the key says of a task that is not asked, because its completions are the same, with its
digest."""
KEY_COLUMNS = ("id", "item", "criterion", "kind", "models")


class HumanEvalProtocol:
    """A human evaluation of models: how it is asked, blinded, decoded and counted.

    Args:
        kind: ``pairwise``, ``graded5``, ``graded7``: each two models; ``ranking``: all at once; ``rating``: each from 1 to 5.
        criteria: What is judged. Ratings ask all of them in one task; the others make a task for each, so that "clearer" and
            "truer" are not mixed. Empty: one question, which is better overall (not for ratings).
        baseline: Compare the others with this model only; None for everybody with everybody.
        name: Tells this evaluation's tasks from others in the same store; it is their batch.
        seed: Of the orders.

    Raises:
        ConfigError: A setting is wrong.
    """

    def __init__(
        self,
        *,
        kind: str = "pairwise",
        criteria: Sequence[AnnotationGuideline] = CRITERIA,
        baseline: str | None = None,
        name: str = "human-eval",
        seed: int = 0,
    ) -> None:
        look_up(dict.fromkeys(KINDS), str(kind), kind="kind of human evaluation")
        if kind == "rating" and not criteria:
            raise ConfigError("Ratings need criteria: what is a completion to be rated for?")
        for criterion in criteria:
            check_type(criterion, AnnotationGuideline, name="A criterion", expected="an AnnotationGuideline")
        names = [criterion.name for criterion in criteria]
        if len(set(names)) < len(names) or OVERALL in names:
            raise ConfigError(
                f"Criteria need names of their own, and {OVERALL!r} is all of them together; got {', '.join(names)}."
            )
        if baseline is not None and kind in ("ranking", "rating"):
            raise ConfigError(f"A {kind} shows all models at once; leave baseline out.")
        self.kind, self.criteria, self.baseline, self.name, self.seed = str(kind), tuple(criteria), baseline, name, seed

    # -------------------------------------------------------------------------------------------------------- asking

    def build_tasks(
        self,
        prompts: Sequence[Text],
        completions: Mapping[str, Sequence[Text]],
        *,
        ids: Sequence[str] | None = None,
    ) -> list[Task]:
        """Blinded tasks, in an order in which nobody judges one prompt many times in a row.

        Args:
            prompts: [n].
            completions: Model -> [n] its completions of the same prompts in the same order.
            ids: [n] names of the prompts; made of their texts by default.

        Raises:
            DataError: Counts differ, ids come twice, or there are too few or too many models.
        """
        from rlhf.data.expand import prompt_names
        from rlhf.store import Response, Task, TaskKind

        names = prompt_names(prompts) if ids is None else list(ids)
        self._check(prompts, completions, names)
        tasks = []
        for criterion in self._asked():
            for models in self._groups(list(completions)):
                differing = [n for n in range(len(prompts)) if not self._is_tie([completions[m][n] for m in models])]
                same = sorted(set(range(len(prompts))).difference(differing))
                ordered = [*self._orders(differing, models, criterion), *((n, range(len(models))) for n in same)]
                for number, order in ordered:
                    shown = [models[place] for place in order]
                    item = names[number]
                    tasks.append(
                        Task(
                            id=self._task_id(item, criterion, models),
                            kind=TaskKind(self.kind),
                            prompt=self._question(prompts[number], criterion),
                            responses=[Response(text=completions[model][number], model=model) for model in shown],
                            batch=self.name,
                            columns={"evaluation": self.name, "item": item, "criterion": criterion},
                        )
                    )
        random.Random(derive_seed(self.seed, "human-eval", "tasks")).shuffle(tasks)
        return tasks

    def asked(self, tasks: Sequence[Task]) -> list[Task]:
        """Those that somebody has to judge: all but comparisons of completions that are the same."""
        return [task for task in tasks if not self._is_tie([response.text for response in task.responses])]

    def check_asked(self, tasks: Sequence[Task]) -> list[Task]:
        """What ``asked`` gives, which is something.

        Raises:
            DataError: All completions are the same.
        """
        asked = self.asked(tasks)
        if tasks and not asked:
            raise DataError(
                f"The completions to be compared are the same in all {len(tasks):,} tasks; there is nothing to ask."
            )
        return asked

    def open(self, store: PreferenceStore, tasks: Sequence[Task]) -> int:
        """Put the tasks into a store and ask for its criteria; tasks that are there already, with the same texts, are left alone.

        The store remembers how it is asked, for ``of_store``, and which comparisons nobody is asked because their completions
        are the same.

        Returns:
            How many were added.

        Raises:
            ConfigError: The store asks for other dimensions already, or holds another evaluation of this name.
            DataError: All completions are the same; or a prompt is known with another text or other completions.
        """
        from rlhf.feedback.human_evaluation.identical import check_unchanged, task_digest

        asked = self.check_asked(tasks)
        kept = store.setting(SETTING, {})
        if kept.get(self.name, self._settings()) != self._settings():
            raise ConfigError(
                f"This store holds an evaluation {self.name!r} that is asked in another way (kind, criteria, baseline or seed); "
                "give this one a name of its own."
            )
        known = store.setting(IDENTICAL, {})
        not_asked = known.get(self.name, {})
        check_unchanged(tasks, {task.id: task for task in self.tasks(store)}, not_asked)
        if self.kind == "rating":
            wanted = [criterion.model_dump(mode="json") for criterion in self.criteria]
            there = store.setting("guidelines")
            if there is not None and [g["name"] for g in there] != [g["name"] for g in wanted]:
                raise ConfigError(
                    f"This store's guidelines are {', '.join(g['name'] for g in there)}; an evaluation by "
                    f"{', '.join(g['name'] for g in wanted)} wants a store of its own."
                )
            store.set_setting("guidelines", wanted)
        added = store.add_tasks(asked, on_known="skip")
        in_asked = {task.id for task in asked}
        same = {t.id: {**_key_row(t), "digest": task_digest(t)} for t in tasks if t.id not in in_asked}
        store.set_setting(IDENTICAL, {**known, self.name: {**not_asked, **same}})
        store.set_setting(SETTING, {**kept, self.name: self._settings()})
        return added

    @classmethod
    def of_store(cls, store: PreferenceStore, name: str | None = None) -> Self:
        """An evaluation that was opened in a store.

        Args:
            store: Where.
            name: Which; None where there is one.

        Raises:
            ConfigError: There is none, none of this name, or several to choose from.
        """
        kept: dict[str, Any] = store.setting(SETTING, {})
        if name is None and len(kept) == 1:
            name = next(iter(kept))
        if not kept or name is None:
            problem = (
                f"holds the evaluations {', '.join(kept)}; say which by its name"
                if kept
                else "holds no evaluation; open one"
            )
            raise ConfigError(f"This store {problem}.")
        settings = look_up(kept, name, kind="evaluation in this store")
        return cls(**{**settings, "criteria": [AnnotationGuideline.of(one) for one in settings["criteria"]]}, name=name)

    def tasks(self, store: PreferenceStore) -> list[Task]:
        """This evaluation's tasks in a store."""
        return [task for task in store.tasks() if task.columns.get("evaluation") == self.name]

    def identical(self, store: PreferenceStore) -> list[dict[str, Any]]:
        """What the key says of the comparisons that nobody is asked, because their completions are the same."""
        asked = {task.id for task in self.tasks(store)}  # a store of an earlier version may say both of one
        rows = store.setting(IDENTICAL, {}).get(self.name, {})
        return [{name: row[name] for name in KEY_COLUMNS} for known, row in rows.items() if known not in asked]

    def export(
        self,
        tasks: Sequence[Task],
        tasks_file: Path | str,
        key_file: Path | str | None = None,
        *,
        identical: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """For another tool: the tasks without a trace of the models, and the key that decodes what comes back.

        A store that holds the tasks needs no key (``record``); without a store it is needed (``read``). Comparisons of
        completions that are the same stand in the key alone.

        The tool must give back, for each task, ``{"id", "annotator", "value"}`` with the value in the order of
        ``completions``, shaped as ``rlhf.store.check_value`` says.

        Args:
            tasks: As ``build_tasks`` or ``tasks`` gave them.
            tasks_file: JSONL to write.
            key_file: JSONL to write, for yourself.
            identical: As ``identical`` gave them, where the tasks come from a store.
        """
        asked = self.asked(tasks)
        in_asked = {task.id for task in asked}
        write_jsonl(
            tasks_file,
            (
                {
                    "id": task.id, "kind": str(task.kind), "prompt": task.prompt,
                    "completions": [response.text for response in task.responses],
                }
                for task in asked
            ),
        )  # fmt: skip
        if key_file is None:
            return
        same = [*(_key_row(task) for task in tasks if task.id not in in_asked), *identical]
        with private_files():  # anyone who reads it knows the models
            write_jsonl(key_file, [*map(_key_row, asked), *({**row, "identical": True} for row in same)])

    # ------------------------------------------------------------------------------------------------------ counting

    def read(self, judged_file: Path | str, key_file: Path | str) -> list[Judged]:
        """What another tool gave back, decoded.

        Raises:
            DataError: A line can't be read, names a task that the key does not know, or repeats a judgment.
        """
        from rlhf.feedback.human_evaluation.answer_files import keyed_rows, returned_rows
        from rlhf.store import check_value

        key = {row["id"]: row for _, row in keyed_rows(key_file, KEY_COLUMNS)}
        judged: list[Judged] = []
        for where, row in returned_rows(judged_file):
            known = key.get(row["id"])
            if known is None:
                raise RowError(where, f"there is no task {row['id']!r} in the key {key_file}; is it another export's?")
            value = check_value(
                known["kind"],
                row["value"],
                num_responses=len(known["models"]),
                dimensions=self._dimensions(),
                where=where,
            )
            judged.append(
                Judged(
                    item=known["item"], criterion=known["criterion"], kind=known["kind"],
                    models=tuple(known["models"]), annotator=str(row["annotator"]), value=value,
                )
            )  # fmt: skip
        return judged

    def record(self, store: PreferenceStore, judged_file: Path | str) -> Recorded:
        """Put what another tool gave back into the store that holds the tasks; a second time changes nothing.

        Raises:
            DataError: A line can't be read, names a task of another evaluation, or repeats a judgment.
        """
        from rlhf.feedback.human_evaluation.answer_files import record_returned

        return record_returned(store, self.tasks(store), judged_file, self._dimensions())

    def judged(self, store: PreferenceStore) -> list[Judged]:
        """This evaluation's judgments in a store that count."""
        return [
            Judged(
                item=str(judgment.task.columns["item"]), criterion=str(judgment.task.columns["criterion"]),
                kind=str(judgment.task.kind), models=tuple(str(response.model) for response in judgment.task.responses),
                annotator=judgment.annotator, value=judgment.value,
            )
            for judgment in store.judgments()
            if judgment.task.columns.get("evaluation") == self.name
        ]  # fmt: skip

    def analyze(
        self, source: PreferenceStore | Sequence[Judged], *, key_file: Path | str | None = None, resamples: int = 200
    ) -> HumanEvaluation:
        """Everything that the judgments say of the models, with intervals over prompts.

        Args:
            source: The store that holds the judgments, or what ``read`` gave.
            key_file: That the judgments were read with: it knows how many comparisons were of completions that are the same.
                A store knows that itself.
            resamples: Draws of prompts behind the intervals of strengths; the others have closed forms.

        Raises:
            DataError: Nothing was judged.
        """
        from rlhf.feedback.human_evaluation.analysis import evaluate
        from rlhf.feedback.human_evaluation.answer_files import keyed_rows

        if isinstance(source, Sequence):
            given = list(source)
            key = [] if key_file is None else [row for _, row in keyed_rows(key_file, KEY_COLUMNS)]
        else:
            given = self.judged(source)
            key = [*map(_key_row, self.tasks(source)), *({**row, "identical": True} for row in self.identical(source))]
        if not given:
            raise DataError(f"Nothing of the evaluation {self.name!r} was judged yet.")
        return evaluate(given, self.criteria, key=key, seed=self.seed, resamples=resamples)

    # ------------------------------------------------------------------------------------------------------- helpers

    def _check(self, prompts: Sequence[Text], completions: Mapping[str, Sequence[Text]], names: Sequence[str]) -> None:
        for model, texts in completions.items():
            if len(texts) != len(prompts):
                raise DataError(
                    f"{model!r} has {len(texts)} completions for {len(prompts)} prompts; give one for each."
                )
        if len(names) != len(prompts) or len(set(names)) < len(names):
            raise DataError(
                f"{len(prompts)} prompts need as many ids, each its own; got {len(set(names))} different ones."
            )
        if len(completions) < (1 if self.kind == "rating" else 2):
            raise DataError(f"A {self.kind} evaluation compares models; got {', '.join(completions) or 'none'}.")
        if self.baseline is not None and self.baseline not in completions:
            raise DataError(f"The baseline {self.baseline!r} is none of the models {', '.join(completions)}.")

    def _settings(self) -> dict[str, Any]:
        """For the store; the name apart."""
        criteria = [criterion.model_dump(mode="json") for criterion in self.criteria]
        return {"kind": self.kind, "criteria": criteria, "baseline": self.baseline, "seed": self.seed}

    def _asked(self) -> list[str]:
        """A criterion for each task of a comparison."""
        return [OVERALL] if self.kind == "rating" or not self.criteria else [c.name for c in self.criteria]

    def _dimensions(self) -> list[str] | None:
        return [criterion.name for criterion in self.criteria] if self.kind == "rating" else None

    def _groups(self, models: Sequence[str]) -> list[tuple[str, ...]]:
        if self.kind in ("ranking", "rating"):
            return [tuple(models)]
        if self.baseline is not None:
            return [(model, self.baseline) for model in models if model != self.baseline]
        return list(combinations(models, 2))

    def _is_tie(self, texts: Sequence[Text]) -> bool:
        """Whether all completions are the same, and they are compared: one that is rated is worth its number all the same."""
        return self.kind != "rating" and all(text == texts[0] for text in texts[1:])

    def _orders(self, prompts: Sequence[int], models: Sequence[str], criterion: str) -> list[tuple[int, Sequence[int]]]:
        """(prompt, places of the models) of each task: in every block of as many prompts as models, each is first once."""
        rng = random.Random(derive_seed(self.seed, "human-eval", criterion, *models))
        numbers = rng.sample(prompts, len(prompts))
        orders: list[tuple[int, Sequence[int]]] = []
        for start in range(0, len(numbers), len(models)):
            base = rng.sample(range(len(models)), len(models))
            for turn, number in enumerate(numbers[start : start + len(models)]):
                orders.append((number, base[turn:] + base[:turn]))
        return orders

    def _task_id(self, item: str, criterion: str, models: Sequence[str]) -> str:
        """The same at every call, and no annotator can read models from it."""
        parts = json.dumps([self.seed, self.name, item, criterion, sorted(models)])
        return f"{self.name[:60]}-{hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()}"

    def _question(self, prompt: Text, criterion: str) -> Text:
        """The prompt, with the criterion before it where a task asks for one alone."""
        if criterion == OVERALL:
            return prompt
        about = next(c for c in self.criteria if c.name == criterion)
        asked = f"Judge by {about.name} alone: {about.description}"
        if isinstance(prompt, str):
            return f"[{asked}]\n\n{prompt}"
        return [{"role": "system", "content": asked}, *prompt]


def _key_row(task: Task) -> dict[str, Any]:
    """What the key says of a task."""
    return {
        "id": task.id, "item": task.columns["item"], "criterion": task.columns["criterion"], "kind": str(task.kind),
        "models": [response.model for response in task.responses],
    }  # fmt: skip
