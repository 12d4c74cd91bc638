// One task on the screen: the answer so far, what is missing, and the views of its completions.

import { DONE } from "./keeping.js";
import { Ranking } from "./ranking.js";

const byId = (id) => document.getElementById(id);
const now = () => (document.visibilityState === "visible" ? performance.now() : null);
const OPPOSITE = { all_good: "all_bad", all_bad: "all_good" };
const ABOUT_LENGTH = 80;
const MOST_SECONDS = 7 * 86_400; // the server's limit
const NOT_REACHED = "The server, which computes the differences, can't be reached.";

export class TaskView {
  /**
   * @param {HTMLElement} stage - its container
   * @param {string} html - from our server, where every text in it was made safe
   * @param {object | null} draft - what was answered before, as `draft` gave it
   * @param {{changed: Function, say: Function, notice: Function, call: Function}} tell
   */
  constructor(stage, html, draft, tell) {
    this.html = html;
    this.element = stage.querySelector(".task");
    this.assignment = Number(this.element.dataset.assignment);
    this.until = this.element.dataset.until;
    this.fresh = "fresh" in this.element.dataset;
    this.kind = this.element.dataset.kind;
    this.tell = tell;
    this.ms = 0;
    this.since = now();
    this.spans = [];
    this.diffViewed = false; // whether the differences were shown before the answer
    const list = this.element.querySelector("#ranks");
    this.ranking = list && new Ranking(list, () => this.changed());
    if (draft) this.#restore(draft);
    this.element.addEventListener("input", (event) => {
      if (event.target.checked) this.#unsay(OPPOSITE[event.target.value]);
      this.changed();
    });
    this.element.addEventListener("focusin", (event) => this.#mark(event.target.closest(".rating")));
    this.#mark(this.#unrated[0] ?? this.#ratings[0]);
    this.#show();
  }

  changed() {
    this.#show();
    this.tell.changed();
  }

  // ------------------------------------------------------------------------------------------------ what was answered

  #all(selector) {
    return [...this.element.querySelectorAll(selector)];
  }

  #value(selector) {
    return this.element.querySelector(`${selector}:checked`)?.value ?? null;
  }

  get #choice() {
    return this.#value('input[name="choice"]');
  }

  get #ratings() {
    return this.#all(".rating");
  }

  get #unrated() {
    return this.#ratings.filter((line) => !rated(line));
  }

  /** Count only time in which the page could be seen. */
  countTime() {
    if (this.since !== null) this.ms += performance.now() - this.since;
    this.since = now();
  }

  get draft() {
    this.countTime();
    return {
      choice: this.#choice,
      ratings: Object.fromEntries(this.#all(".rating input:checked").map((each) => [each.name, each.value])),
      ranking: this.ranking?.state ?? null,
      comment: byId("comment").value,
      labelProbability: this.#value('input[name="label_probability"]'),
      flags: this.#all('input[name="flag"]:checked').map((each) => each.value),
      spans: this.spans,
      diffViewed: this.diffViewed,
      ms: Math.round(this.ms),
    };
  }

  #restore(draft) {
    for (const each of this.#all("input")) {
      const { name } = each;
      if (name === "choice") each.checked = each.value === draft.choice;
      else if (name === "label_probability") each.checked = each.value === draft.labelProbability;
      else if (name === "flag") each.checked = draft.flags.includes(each.value);
      else each.checked = draft.ratings[name] === each.value;
    }
    if (this.ranking && draft.ranking) this.ranking.state = draft.ranking;
    byId("comment").value = draft.comment;
    this.spans = draft.spans;
    this.diffViewed = draft.diffViewed ?? false;
    this.ms = draft.ms;
    this.#showSpans();
  }

  /** What is missing before this can be sent; "" for nothing. */
  get missing() {
    if (this.kind === "ranking") return this.ranking.isTouched ? "" : "You did not change the order. If it is right, send again.";
    if (this.kind !== "rating") return this.#choice === null ? "Choose an answer first." : "";
    const open = this.#unrated.length;
    return open ? `${open === 1 ? "1 rating is" : `${open} ratings are`} missing.` : "";
  }

  goToMissing() {
    if (this.ranking) this.ranking.isTouched = true; // asked once: the second time it is intended
    else (this.#unrated[0] ?? this.element).querySelector(".rating input, .choice input, input")?.focus();
    this.changed();
  }

  /** The answer, with completions in the order of the screen. */
  get #answer() {
    switch (this.kind) {
      case "pairwise":
        return { preference: this.#choice };
      case "binary":
        return { label: this.#choice === "true" };
      case "ranking":
        return { ranks: this.ranking.ranks };
      case "rating": {
        const table = {};
        for (const line of this.#ratings) (table[line.dataset.dimension] ??= [])[Number(line.dataset.place)] = Number(rated(line).value);
        return { ratings: table };
      }
      default:
        return { grade: Number(this.#choice) };
    }
  }

  /** The beginning of the prompt, to identify this task. */
  get about() {
    const text = this.element.querySelector(".prompt .prose")?.textContent.trim() ?? "";
    return text.length > ABOUT_LENGTH ? `${text.slice(0, ABOUT_LENGTH)}…` : text;
  }

  /** The request body for the server. */
  get submission() {
    const { comment, labelProbability, flags, spans, ms } = this.draft;
    return {
      assignment: this.assignment,
      answer: this.#answer,
      comment,
      flags,
      spans,
      label_probability: labelProbability === null ? null : Number(labelProbability),
      seconds: Math.min(ms / 1000, MOST_SECONDS),
      diff_viewed: this.#all(".completion").length > 1 ? this.diffViewed : null,
    };
  }

  // ------------------------------------------------------------------------------------------------------- answering

  digit(number) {
    if (this.ranking) {
      this.ranking.take(number - 1);
      this.#all(".completion")[number - 1]?.scrollIntoView({ block: "nearest" });
    } else if (this.kind === "rating") {
      const input = this.element.querySelector(`.rating.current input[value="${number}"]`);
      if (!input) return;
      input.checked = true;
      this.changed();
      this.step(1);
    } else {
      this.#choose(`[data-key="${number}"]`);
    }
  }

  tie() {
    if (this.ranking) this.ranking.toggleTie(this.ranking.taken);
    else this.#choose('[value="tie"], input[name="choice"][value="0"]');
  }

  /** A or B; of grades the one that says no more than that. */
  prefer(letter) {
    this.#choose(`[data-prefers="${letter}"]`);
  }

  #choose(which) {
    const input = this.element.querySelector(`input[name="choice"]${which}`);
    if (!input) return;
    input.checked = true;
    input.focus({ preventScroll: true });
    this.changed();
    this.tell.chosen();
  }

  /** Go to the rating after the marked one, or before it. */
  step(by) {
    const lines = this.#ratings;
    const to = lines[lines.findIndex((each) => each.classList.contains("current")) + by];
    if (!to) return;
    this.#mark(to);
    (rated(to) ?? to.querySelector("input")).focus({ preventScroll: true });
    to.scrollIntoView({ block: "nearest" });
  }

  nextLabelProbability() {
    const steps = this.#all('input[name="label_probability"]');
    const next = steps[steps.findIndex((each) => each.checked) + 1]; // after the last one: none
    for (const each of steps) each.checked = each === next;
    this.tell.say(`Confidence: ${next?.parentElement.textContent.trim() ?? "not set"}`);
    this.changed();
  }

  /** All bad, all good, not set. */
  nextQuality() {
    const [good, bad] = ["all_good", "all_bad"].map((value) => this.element.querySelector(`input[name="flag"][value="${value}"]`));
    if (!good) return;
    [bad.checked, good.checked] = [!bad.checked && !good.checked, bad.checked];
    const said = [bad, good].find((each) => each.checked);
    this.tell.say(`Flag: ${said?.parentElement.textContent.trim() ?? "neither"}`);
    this.changed();
  }

  #unsay(flag) {
    const box = flag && this.element.querySelector(`input[name="flag"][value="${flag}"]`);
    if (box) box.checked = false;
  }

  #mark(line) {
    if (!line) return;
    for (const each of this.#ratings) each.classList.toggle("current", each === line);
  }

  #show() {
    this.element.querySelector("button.main").setAttribute("aria-disabled", String(Boolean(this.missing)));
    const lines = this.#ratings;
    if (lines.length) byId("rated").textContent = `${lines.length - this.#unrated.length} of ${lines.length} rated`;
    const picked = this.#picked;
    for (const card of this.#all(".completion")) card.classList.toggle("picked", Number(card.dataset.place) === picked);
  }

  /** Place of the completion that the answer so far prefers, or that keys move. */
  get #picked() {
    if (this.ranking?.taken) return Number(this.ranking.taken.dataset.place);
    if (!this.kind.startsWith("graded")) return { a: 0, b: 1 }[this.#choice] ?? null;
    const grade = Number(this.#choice);
    return grade === 0 ? null : Number(grade < 0);
  }

  // ---------------------------------------------------------------------------------------------------- ways to look

  get #mode() {
    return ["diff", "source"].find((each) => !this.element.querySelector(`.view.${each}`).hidden) ?? "rendered";
  }

  toggle(mode) {
    return this.#look(this.#mode === mode ? "rendered" : mode);
  }

  async #look(mode) {
    if (mode === "diff" && !(await this.#compare())) return;
    for (const view of this.#all(".view")) view.hidden = !view.classList.contains(mode);
    for (const button of this.#all("[data-look]")) button.setAttribute("aria-pressed", String(button.dataset.look === mode));
    if (mode === "diff" && !this.diffViewed) {
      this.diffViewed = true;
      this.changed();
    }
    if (mode !== "source") return;
    for (const each of this.#all(".exact")) {
      each.style.height = "auto";
      each.style.height = `${each.scrollHeight + 4}px`;
    }
    this.tell.say("Plain text. Select a passage, then press h.");
  }

  async #compare() {
    const places = this.#all(".view.diff");
    if (places.length < 2) return false;
    if (this.element.dataset.compared) return true;
    const result = await this.tell.call("/api/diff", { assignment: this.assignment });
    if (result.outcome !== DONE) {
      this.tell.notice(result.error ?? NOT_REACHED);
      return false;
    }
    places.forEach((each, place) => {
      each.innerHTML = result.data.html[place]; // sanitized by the server, like the task itself
    });
    this.element.dataset.compared = "yes";
    return true;
  }

  /** First press: plain texts, in which a place is exact. With something selected: ask why. */
  highlight() {
    const area = this.#all(".exact").find((each) => each.selectionStart < each.selectionEnd);
    if (this.#mode !== "source" || !area) {
      this.toggle("source");
      return;
    }
    const [from, to] = wholeCharacters(area.value, area.selectionStart, area.selectionEnd);
    const text = area.value.slice(from, to);
    const start = [...area.value.slice(0, from)].length; // characters, not UTF-16 units
    const span = {
      completion: Number(area.closest(".completion").dataset.place),
      turn: Number(area.dataset.turn),
      start,
      end: start + [...text].length,
      text,
    };
    byId("highlight-quote").textContent = text;
    byId("highlight-reason").value = "";
    // not when the dialog says that it has closed, which comes later: keys that are typed on must find this highlight kept
    byId("highlight-form").onsubmit = () => {
      this.spans.push({ ...span, reason: byId("highlight-reason").value });
      area.selectionEnd = area.selectionStart;
      this.#showSpans();
      this.changed();
    };
    area.focus(); // where a dialog that closes goes back to
    byId("highlight").showModal();
  }

  #showSpans() {
    for (const list of this.#all(".highlights")) {
      const place = Number(list.closest(".completion").dataset.place);
      const mine = this.spans.filter((span) => span.completion === place);
      list.hidden = mine.length === 0;
      list.replaceChildren(...mine.map((span) => this.#spanItem(span)));
    }
  }

  #spanItem(span) {
    const item = document.createElement("li");
    const words = document.createElement("span");
    const quote = document.createElement("mark");
    quote.textContent = span.text.length > 120 ? `${span.text.slice(0, 120)}…` : span.text;
    words.append(quote, span.reason ? ` ${span.reason}` : "");
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "quiet";
    remove.textContent = "Remove";
    remove.setAttribute("aria-label", `Remove the highlight ${quote.textContent}`);
    remove.addEventListener("click", () => {
      this.spans = this.spans.filter((each) => each !== span);
      this.#showSpans();
      this.changed();
    });
    item.append(words, remove);
    return item;
  }
}

/** The same passage without half of a character at either end. */
function wholeCharacters(text, from, to) {
  const isInside = (place) => /[\uDC00-\uDFFF]/.test(text[place] ?? "") && /[\uD800-\uDBFF]/.test(text[place - 1] ?? "");
  return [from - Number(isInside(from)), to + Number(isInside(to))];
}

function rated(line) {
  return line.querySelector("input:checked");
}
