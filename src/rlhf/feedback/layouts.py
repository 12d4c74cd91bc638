"""The table of layouts that go in and out of a store. Nothing else is imported here: `rlhf feedback formats` answers at once,
whatever is installed. What reads and writes them is named by text and loaded by ``rlhf.feedback.exchange.formats``.

A new layout is a module of ``rlhf.feedback.exchange`` and an entry in ``LAYOUTS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OURS = "rows"
"""The format that keeps everything, which `rlhf.feedback.tasks` reads and `rlhf.feedback.rows` makes."""
SAVED = "datasets"
"""The same rows as a folder."""
LABELS = "labels"
"""The format of labels of several classes."""
LABEL_COLUMNS = ("label", "class")
"""Where such a row may have its label."""
ANNOTATOR_COLUMNS = ("annotator", "annotator_id", "worker", "worker_id", "rater", "rater_id")
"""Where it may say who gave it."""
HELPSTEER_DIMENSIONS = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a layout is recognized, read and written. Functions are named ``module:function`` below ``rlhf.feedback.exchange``; one
    without a reader of its own is rows as this library reads them anyway, so that all can be imported.
    """

    about: str
    columns: tuple[str, ...] = ()
    """What a row of it has and others have not: it is recognized by them; ``a|b`` is one or the other."""
    is_it: str = ""
    """Takes a row; asked where the columns are present and do not settle it."""
    read: str = ""
    """Takes lines that are one task; gives its items."""
    read_traces: str = ""
    """Takes all lines of all files, which tell of conversations and what users said of them; see ``exchange.conversations``."""
    key: str | None = None
    """Rows one behind the other that agree in this column are one task."""
    write_items: str = ""
    """Takes a path, items and guidelines: writes tasks and judgments."""
    row_of: str = ""
    """Takes a pair or a label and gives a row of the layout."""
    keeps_all: bool = False
    """Whether it is the library's own."""

    @property
    def exports(self) -> bool:
        """Whether it can be written."""
        return bool(self.keeps_all or self.write_items or self.row_of)


LAYOUTS: Mapping[str, Layout] = {
    OURS: Layout(
        about="rows of this library (JSONL, JSON, CSV, Parquet), TRL's and ShareGPT's and Alpaca's among them", keeps_all=True
    ),
    SAVED: Layout(about="the same rows as a folder for datasets.load_from_disk", keeps_all=True),
    "open-webui": Layout(
        about="Open WebUI's feedback export: thumbs, arena votes, edited answers",
        columns=("data", "snapshot"), is_it="open_webui:is_open_webui", read_traces="open_webui:from_open_webui",
    ),
    "otel-genai": Layout(
        about="OpenTelemetry GenAI spans and events with evaluations, as OTLP JSON or flat lines",
        columns=("attributes|resourceSpans|resourceLogs",), is_it="otel_genai:is_otel_genai", read_traces="otel_genai:from_otel_genai",
    ),
    "hf-traces": Layout(
        about="session traces of the Hugging Face Hub (STS format)",
        columns=("type", "harness|message"), is_it="hf_traces:is_hf_trace", read_traces="hf_traces:from_hf_traces",
    ),
    "atif": Layout(
        about="Harbor's agent trajectories (ATIF 1.4)", columns=("schema_version", "steps"), read_traces="atif:from_atif"
    ),
    "langfuse": Layout(
        about="Langfuse's exports of observations, traces and scores",
        columns=("id", "trace_id|traceId|timestamp"), is_it="langfuse:is_langfuse", read_traces="langfuse:from_langfuse",
    ),
    "label-studio": Layout(
        about="Label Studio: a JSON list of tasks, with the labeling configuration next to it",
        columns=("data",), is_it="label_studio:is_label_studio",
        read="label_studio:from_label_studio", write_items="label_studio:write_label_studio",
    ),
    "argilla": Layout(
        about="Argilla 2: a folder with records.json and .argilla/",
        columns=("fields", "responses"), read="argilla:from_argilla", write_items="argilla:write_argilla",
    ),
    "argilla-flat": Layout(
        about="Argilla 2: flat rows with <question>.responses",
        columns=("status",), is_it="argilla:is_argilla_flat", read="argilla:from_argilla_flat",
    ),
    "ultrafeedback": Layout(
        about="UltraFeedback: an instruction and completions rated on four dimensions",
        columns=("instruction", "completions"), is_it="published:is_ultrafeedback", read="published:ultrafeedback",
    ),
    "helpsteer2": Layout(
        about="HelpSteer2: one completion a row, rated 0 to 4 on five dimensions",
        columns=("prompt", "response", *HELPSTEER_DIMENSIONS), read="published:helpsteer2", key="prompt",
    ),
    "helpsteer2-preference": Layout(
        about="HelpSteer2's pairs, with a strength from -3 to 3",
        columns=("prompt", "response_1", "response_2", "preference_strength"), read="published:helpsteer2_preference",
    ),
    "helpsteer3": Layout(
        about="HelpSteer3: pairs judged by several people, -3 to 3",
        columns=("context", "response1", "response2", "overall_preference"), read="published:helpsteer3",
    ),
    "nectar": Layout(about="Nectar: seven answers, ranked", columns=("prompt", "answers"), read="published:nectar"),
    "shp": Layout(
        about="SHP: two comments to a post", columns=("history", "human_ref_A", "human_ref_B", "labels"), read="published:shp"
    ),
    "pku-saferlhf": Layout(
        about="PKU-SafeRLHF: pairs with two verdicts, help and safety",
        columns=("prompt", "response_0", "response_1", "better_response_id", "safer_response_id"), read="published:pku_saferlhf",
    ),
    LABELS: Layout(
        about="one (item, annotator, label) a row: labels of any number of classes",
        columns=("|".join(LABEL_COLUMNS), "|".join((*ANNOTATOR_COLUMNS, "gold"))),
        is_it="labels:is_labels", read="labels:from_labels",
    ),
    "openai": Layout(
        about="OpenAI's preference format (Fireworks, Together alike)",
        columns=("input", "preferred_output|preferred_completion"), read="dialogues:from_openai", row_of="dialogues:to_openai",
    ),
    "hh": Layout(
        about="HH-RLHF: two whole transcripts",
        columns=("chosen", "rejected"), is_it="dialogues:is_hh", read="dialogues:from_hh", row_of="dialogues:to_hh",
    ),
    "trl": Layout(about="the columns of TRL's trainers and no others", row_of="dialogues:to_trl"),
    "sharegpt": Layout(about="ShareGPT: the better completions as demonstrations", row_of="dialogues:to_sharegpt"),
    "alpaca": Layout(about="Alpaca: the same, of single turns", row_of="dialogues:to_alpaca"),
}  # fmt: skip
"""In the order in which they are listed, and tried where a file's layout is not named."""
