// The chat page: a conversation, and what somebody says of its answers.

import { Refused, complete, dropKey, key, models, randomHex, sendFeedback, useKey } from "./api.js";
import { Notices } from "./notices.js";
import * as redTeam from "./red_team.js";
import { Turn, button, element } from "./turn.js";

const byId = (id) => document.getElementById(id);
const { dataset } = document.body;
const keepsFeedback = "keepsFeedback" in dataset;
const compareEvery = Number(dataset.compareEvery);
const notices = new Notices();
const user = ownName();

let turns = [];
let shares = {}; // name -> names that share its requests
let contexts = {}; // name -> most tokens of a prompt and its answer
let stopping = null; // ends the answers that are coming
let pending = null; // two answers that nobody chose from yet

/** The same in every visit of this browser, so that shared names stay with one model. */
function ownName() {
  const known = localStorage.getItem("rlhf-user") ?? `chat-${randomHex(8)}`;
  localStorage.setItem("rlhf-user", known);
  return known;
}

/** Whether what is asked now may be kept. */
const consents = () => keepsFeedback && byId("consent").checked;

function say(text) {
  byId("said").textContent = text;
}

/** Show what went wrong; `again` is offered as a button. */
function complain(error, again = null) {
  notices.show(error.message);
  byId("notice-retry").hidden = again === null;
  byId("notice-retry").onclick = () => {
    notices.show("");
    byId("notice-retry").hidden = true;
    again();
  };
  if (error.status === 401) askForKey(true);
}

// ------------------------------------------------------------------------------------------------------ answers

function request(model) {
  const body = { model, user, messages: turns.map(({ role, text }) => ({ role: role, content: text })) };
  const temperature = byId("temperature").valueAsNumber;
  const most = byId("max-tokens").valueAsNumber;
  if (Number.isFinite(temperature)) body.temperature = temperature;
  if (Number.isFinite(most)) body.max_tokens = most;
  if (keepsFeedback) body.consent = consents();
  return body;
}

/** `complete`; where the conversation leaves less room than the page asked for by itself, the answer gets what is left. */
async function completeInRoom(asked, grow, signal) {
  try {
    return await complete(asked, grow, signal);
  } catch (error) {
    if (error.code !== "context_length_exceeded") throw error;
    if (byId("max-tokens").dataset.chosen || asked.max_tokens === undefined) {
      throw new Refused(error.status, `${error.message} Or begin a new conversation.`);
    }
    const { max_tokens: _, ...rest } = asked;
    return completeInRoom(rest, grow, signal);
  }
}

/** Have a turn written. Gives whether it is complete. */
async function write(turn, model, signal) {
  turn.running(true);
  const asked = request(model);
  try {
    const done = await completeInRoom(asked, (text) => turn.show(text), signal);
    turn.show(done.text);
    turn.completionId = asked.consent ? done.id : null;
    turn.model = done.model;
    turn.note(done.reason === "length" ? "Cut off: the limit of tokens is in Settings." : "");
    return true;
  } catch (error) {
    if (error.name === "AbortError") turn.note("Stopped.");
    else {
      turn.note("Not complete.");
      complain(error);
    }
    return false;
  } finally {
    turn.running(false);
  }
}

function busy(is) {
  byId("send").hidden = is;
  byId("stop").hidden = !is;
}

async function whileBusy(step) {
  stopping = new AbortController();
  busy(true);
  try {
    await step(stopping.signal);
  } finally {
    stopping = null;
    busy(false);
  }
}

function put(...nodes) {
  byId("empty").hidden = true;
  byId("conversation").append(...nodes);
  nodes.at(-1).scrollIntoView({ block: "nearest" });
}

async function answer() {
  const model = byId("model").value;
  if (compareEvery && consents() && !redTeam.isOn() && Math.random() * compareEvery < 1) return compare(model);
  const turn = new Turn("assistant", "Model");
  put(turn.node);
  const conversation = turns;
  await whileBusy(async (signal) => {
    await write(turn, model, signal);
    if (turns === conversation) settle(turn); // else a new one was begun meanwhile
  });
  return undefined;
}

/** The answer that the conversation goes on with. */
function settle(turn) {
  const last = turns.at(-1);
  if (last?.role === "assistant") last.tools();
  turns.push(turn);
  turn.title(turn.model ?? "Model");
  offer(turn);
  turn.node.scrollIntoView({ block: "nearest" });
  say(`Answer: ${turn.text}`);
}

function offer(turn) {
  const tools = [];
  if (keepsFeedback && turn.completionId !== null) {
    if (redTeam.isOn()) tools.push(button("Grade harm", "h", () => redTeam.grade((given) => keepHarm(turn, given))));
    else if (!turn.edited) tools.push(...verdicts(turn));
    if (!redTeam.isOn()) tools.push(button("Edit", "e", () => turn.edit((text) => keepEdit(turn, text))));
  }
  tools.push(button("Again", "r", () => again(turn)));
  turn.tools(...tools);
}

/** Thumbs or ratings, whatever Settings says, and the reason for one that was given. */
function verdicts(turn) {
  const scale = byId("scale").value;
  const choices = scale === "thumbs"
    ? [["Good", "g", { kind: "thumbs", up: true }], ["Bad", "b", { kind: "thumbs", up: false }]]
    : Array.from({ length: Number(scale) }, (_, place) =>
      [String(place + 1), "", { kind: "rating", rating: place + 1, scale: [1, Number(scale)] }]);
  const made = choices.map(([label, hint, given]) => {
    const one = button(label, hint, () => judge(turn, given, label));
    if (!hint) one.setAttribute("aria-label", `${label} of ${scale}`);
    one.setAttribute("aria-pressed", String(turn.verdict?.label === label));
    return one;
  });
  if (turn.verdict) {
    made.push(button("Why?", "w", () => turn.ask("Why?", turn.verdict.comment ?? "", (comment) => {
      turn.verdict.comment = comment;
      tell({ ...turn.verdict.given, completion_id: turn.completionId, comment });
    })));
  }
  return made;
}

async function again(turn) {
  if (stopping || turns.at(-1) !== turn) return;
  turns.pop();
  const next = new Turn("assistant", "Model");
  turn.node.replaceWith(next.node);
  const conversation = turns;
  await whileBusy(async (signal) => {
    const isComplete = await write(next, byId("model").value, signal);
    if (turns !== conversation) return;
    settle(next);
    if (isComplete && turn.completionId !== null && next.completionId !== null) {
      tell({ kind: "regenerate", completion_id: turn.completionId, next_completion_id: next.completionId });
    }
  });
}

// --------------------------------------------------------------------------------------------------- two answers

async function compare(model) {
  const names = shares[model] ? twoOf(shares[model]) : [model];
  const two = [new Turn("assistant", ""), new Turn("assistant", "")];
  const firstIsA = crypto.getRandomValues(new Uint8Array(1))[0] % 2 === 0;
  const shown = firstIsA ? two : [two[1], two[0]];
  shown.forEach((turn, place) => turn.title("AB"[place]));
  const node = element("div", { className: "pair" }, ...shown.map((turn) => turn.node));
  put(node);
  const conversation = turns;
  await whileBusy(async (signal) => {
    const areComplete = await Promise.all(two.map((turn, number) => write(turn, names[number] ?? model, signal)));
    if (turns !== conversation) return;
    if (areComplete.every(Boolean) && shown[0].text !== shown[1].text) {
      pending = { two, shown, node };
      offerVote();
    } else { // nothing to choose from
      goOnWith(shown.find((turn) => turn.completionId !== null) ?? shown[0], node);
    }
  });
}

/** Two of several names, in their order. */
function twoOf(names) {
  const draw = new Map(names.map((name) => [name, Math.random()]));
  const [, , limit = 1] = [...draw.values()].sort((a, b) => a - b);
  return names.filter((name) => draw.get(name) < limit);
}

function offerVote() {
  const choices = [["A is better", 0], ["Same", null], ["B is better", 1]];
  const buttons = choices.map(([label, place], number) =>
    button(label, String(number + 1), () => vote(place), { className: "" }));
  const question = element("p", { textContent: "Which answer is better?", tabIndex: -1 });
  pending.node.append(element("div", { className: "card vote" }, question, element("div", {}, ...buttons)));
  pending.node.lastElementChild.scrollIntoView({ block: "nearest" });
  question.focus(); // and no button: Enter must not choose by itself
  say("Two answers. Which one is better?");
}

/** `place` on the screen, or null for a tie: the conversation then goes on with what stood first. */
function vote(place) {
  const { two, shown, node } = pending;
  pending = null;
  const preference = place === null ? "tie" : "ab"[two.indexOf(shown[place])];
  tell({
    kind: "vote", completion_id: two[0].completionId, completion_id_b: two[1].completionId, preference,
    shown_first: "ab"[two.indexOf(shown[0])],
  });
  goOnWith(shown[place ?? 0], node);
  byId("message").focus();
}

function goOnWith(turn, node) {
  node.replaceWith(turn.node);
  settle(turn);
}

// ------------------------------------------------------------------------------------------------------ feedback

/** Send an event; its key stays the same however often it is sent. */
async function tell(event) {
  const kept = { key: randomHex(16), user, consent: true, ...event };
  const send = async () => {
    try {
      await sendFeedback(kept);
      say("Feedback kept.");
      return true;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const mayPass = error.status === 0 || error.status === 401 || error.status === 429 || error.status >= 500;
      complain(new Refused(error.status, `Your feedback was not kept. ${error.message}`), mayPass ? send : null);
      return false;
    }
  };
  return send();
}

function judge(turn, given, label) {
  if (turn.verdict?.label === label) return;
  const comment = turn.verdict?.comment;
  turn.verdict = { given, label, comment };
  const focused = turn.node.contains(document.activeElement);
  offer(turn);
  if (focused) turn.part('.toolbar button[aria-pressed="true"]').focus();
  tell({ ...given, completion_id: turn.completionId, ...(comment && { comment }) });
}

function keepHarm(turn, given) {
  turn.note(`Harm ${given.harm}, ${given.category}.`);
  tell({ kind: "red_team", completion_id: turn.completionId, ...given });
}

function keepEdit(turn, text) {
  turn.show(text);
  turn.edited = true;
  turn.note("Edited by you.");
  offer(turn);
  tell({ kind: "edit", completion_id: turn.completionId, edited: text });
}

// ---------------------------------------------------------------------------------------------------- the page

async function send() {
  const field = byId("message");
  const text = field.value.trim();
  if (!text || stopping) return;
  if (pending) { // nobody chose: go on with what stood first, and no vote is kept
    const { shown, node } = pending;
    pending = null;
    goOnWith(shown[0], node);
  }
  notices.show("");
  field.value = "";
  turns.at(-1)?.tools();
  const turn = new Turn("user", "You");
  turn.show(text);
  turns.push(turn);
  put(turn.node);
  await answer();
}

function newChat() {
  stopping?.abort();
  turns = [];
  pending = null;
  byId("conversation").replaceChildren();
  byId("empty").hidden = false;
  byId("message").focus();
}

function askForKey(wasWrong) {
  if (wasWrong) dropKey();
  byId("key-wrong").hidden = !(wasWrong && byId("key").value);
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

/** Half of what the model takes is for its answer, where nobody said more than the usual number. */
function limitTokens() {
  const field = byId("max-tokens");
  if (field.dataset.chosen) return;
  const model = byId("model").value;
  const most = (shares[model] ?? [model]).map((name) => contexts[name]).filter(Number.isFinite);
  field.value = Math.min(Number(field.defaultValue), ...most.map((tokens) => Math.ceil(tokens / 2)));
}

async function fillModels() {
  try {
    const list = await models();
    shares = Object.fromEntries(list.filter((one) => one.shares).map((one) => [one.id, Object.keys(one.shares)]));
    contexts = Object.fromEntries(list.map((one) => [one.id, one.max_model_len]));
    const names = [...Object.keys(shares), ...list.filter((one) => !one.shares).map((one) => one.id)];
    byId("model").replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
    limitTokens();
    byId("key-dialog").close();
    byId("message").focus();
  } catch (error) {
    if (error.status === 401) askForKey(true);
    else complain(error, fillModels);
  }
}

function showConsent() {
  byId("consent-off").hidden = byId("consent").checked;
}

function offerAgain() {
  if (turns.at(-1)?.role === "assistant") offer(turns.at(-1));
}

/** Keys 1 to 5: of two answers which is better, else a rating. */
function number(which) {
  if (pending) [() => vote(0), () => vote(null), () => vote(1)][which - 1]?.();
  else if (keepsFeedback && byId("scale").value !== "thumbs") ofLast(String(which));
}

const ON_KEY = {
  "/": () => byId("message").focus(),
  "?": () => byId("keys").showModal(),
  n: newChat,
  g: () => ofLast("Good"),
  b: () => ofLast("Bad"),
  e: () => ofLast("Edit"),
  r: () => ofLast("Again"),
  w: () => ofLast("Why?"),
  h: () => ofLast("Grade harm"),
  ...Object.fromEntries([1, 2, 3, 4, 5].map((which) => [which, () => number(which)])),
};

function ofLast(label) {
  const tools = turns.at(-1)?.part(".toolbar:not([hidden])")?.children ?? [];
  [...tools].find((one) => one.textContent.startsWith(label))?.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const inField = event.target.matches("textarea, input, select");
  if (event.key === "Escape") {
    if (stopping) stopping.abort();
    else if (inField) event.target.blur();
  } else if (!inField && event.key in ON_KEY) {
    event.preventDefault();
    ON_KEY[event.key]();
  }
});
byId("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value.trim());
  fillModels();
});
byId("stop").addEventListener("click", () => stopping?.abort());
byId("model").addEventListener("change", limitTokens);
byId("max-tokens").addEventListener("input", () => {
  byId("max-tokens").dataset.chosen = "yes";
});
byId("new-chat").addEventListener("click", newChat);
byId("open-settings").addEventListener("click", () => byId("settings").showModal());
byId("open-keys").addEventListener("click", () => byId("keys").showModal());
if (keepsFeedback) {
  byId("user").textContent = user;
  const said = localStorage.getItem("rlhf-consent");
  byId("consent").checked = said ? said === "on" : dataset.consent === "assumed";
  byId("consent").addEventListener("change", () => {
    localStorage.setItem("rlhf-consent", byId("consent").checked ? "on" : "off");
    showConsent();
  });
  showConsent();
  byId("scale").value = localStorage.getItem("rlhf-scale") ?? "thumbs";
  byId("scale").addEventListener("change", () => {
    localStorage.setItem("rlhf-scale", byId("scale").value);
    offerAgain();
  });
  redTeam.begin(offerAgain);
}
if ("asksForKey" in dataset && !key()) askForKey(false);
else fillModels();
