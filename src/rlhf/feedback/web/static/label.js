// The labeling page: shows a task, hands the answer to the outbox and goes on with the next task, which is there already.

import { DONE, Drawer, LATER, Outbox, SIGNED_OUT, newKey, post, sendLast } from "./keeping.js";
import { Notices } from "./notices.js";
import { QueuedKeys } from "./queued_keys.js";
import { Refused } from "./refused.js";
import { TaskView } from "./task.js";

const meta = (name) => document.querySelector(`meta[name="${name}"]`).content;
const byId = (id) => document.getElementById(id);
const root = meta("root");
const drawer = new Drawer(`rlhf:${meta("store")}:${meta("annotator")}:`); // another store or person must not send what is kept here
const settings = new Drawer("rlhf:settings:");
const call = (path, body) => post(root, path, meta("csrf-token"), body);
const askForTask = (body) => post(root, "/api/next", meta("csrf-token"), body, leaving.signal);
const KEPT_ACTIONS = 20;
const RENEW_MS = 5 * 60_000;
const LONGEST_LEAVE_MS = 2000;
const LONGEST_DRAFT_MS = 30 * 86_400_000;
const NOT_REACHED = "Undo needs the server, and it can't be reached.";

const stage = byId("task");
let current = null; // the TaskView on the screen
let following = null; // {assignment, until, fresh, html}, here before it is needed
let leaving = new AbortController(); // what was asked for must not come after the page has left
let isGoingOn = false;
let isAtWork = false;
let isUndoing = false;
let isPainted = false; // whether the task in `current` has been on the screen: no key acts on one that nobody could see
let kind = ""; // of the newest task
const answered = new Set(); // left behind on this page: the server may not know yet

// ---------------------------------------------------------------------------------------------------------------- sending

const notices = new Notices();
const notice = (text) => notices.show(text);
const refused = new Refused(drawer);
const outbox = new Outbox(drawer, call, {
  changed: tellOutbox,
  done: (_body, data) => showProgress(data.progress),
  refused: (answer, error) => {
    refused.keep(answer);
    notices.keep(`One answer was not taken: ${error}`);
    answered.delete(answer.body.assignment);
  },
  retry: goOn,
});

const queued = new QueuedKeys({
  isReady: () => !isUndoing && (current ? isPainted : !byId("nothing-left").hidden) && !document.querySelector("dialog[open]"),
  kind: () => kind,
  notice,
  changed: showQueued,
});

function showQueued() {
  byId("queued").hidden = queued.keys.length === 0;
  byId("queued-keys").textContent = queued.keys.map(({ key }) => key).join(" ");
}

function tellOutbox() {
  const waiting = outbox.names.length;
  const { trouble } = outbox;
  byId("outbox").hidden = !trouble;
  if (!trouble) return;
  const kept = waiting === 1 ? "1 answer is" : `${waiting} answers are`;
  const where = drawer.isSafe ? "kept in this browser" : "kept only as long as this page is open";
  const signedOut = trouble.outcome === SIGNED_OUT;
  byId("outbox-text").textContent = signedOut
    ? `${trouble.error} ${kept} ${where}; sign in again and they are sent.`
    : `The server can't be reached${trouble.error ? ` (${trouble.error})` : ""}. ${kept} ${where} and sent when it is back.`;
  byId("outbox-now").textContent = signedOut ? "Sign in" : "Try now";
}

/** Send what waits, then have the next task ready; safe to call at any time. */
async function goOn() {
  if (isGoingOn) return;
  isGoingOn = true;
  try {
    if (!(await outbox.flush())) return;
    if (current === null) await fetchTask();
    else if (following === null) await preload();
  } finally {
    isGoingOn = false;
  }
  if (outbox.names.length > 0 && !outbox.trouble) goOn(); // answered while we were busy
}

async function fetchTask() {
  const result = await askForTask({});
  if (result.outcome === DONE) {
    showProgress(result.data.progress);
    show(result.data.task);
  } else if (result.outcome === LATER) {
    setTimeout(goOn, result.waitMs ?? 2000);
  } else if (result.outcome === SIGNED_OUT) {
    location.reload();
  } else {
    notice(result.error);
  }
}

async function preload() {
  const result = await askForTask({ beside: current.assignment });
  const task = result.outcome === DONE ? result.data.task : null;
  const isAnother = task && ![current?.assignment, following?.assignment].includes(task.assignment) && !answered.has(task.assignment);
  if (isAnother && following === null) following = task;
  else if (isAnother) giveBack([task]); // an undo put another one in its place while we asked
  if (current === null) advance(); // answered while we asked
}

function advance() {
  const next = following;
  following = null;
  if (next) show(next);
  else {
    current = null;
    stage.replaceChildren();
    byId("waiting").hidden = false;
  }
  goOn();
}

function leave(path, body, what) {
  answered.add(body.assignment);
  outbox.add(path, body, current.about);
  drawer.remove("undo"); // the next undo is of this one
  const all = [...actions(), { what, assignment: body.assignment }];
  const kept = all.slice(-KEPT_ACTIONS);
  drawer.set("actions", kept);
  for (const { assignment } of all.slice(0, -KEPT_ACTIONS)) {
    if (!kept.some((each) => each.assignment === assignment)) drawer.remove(`draft:${assignment}`); // no undo brings it back
  }
  advance();
}

function actions() {
  return drawer.get("actions") ?? [];
}

/** Say that somebody still works on this task, so that its time does not run out under their hands. */
async function renew() {
  const task = current;
  const isNeeded = isAtWork && task && document.visibilityState === "visible";
  isAtWork = false;
  if (!isNeeded) return;
  const result = await askForTask({ beside: following?.assignment ?? null });
  const held = result.outcome === DONE ? result.data.task : null;
  // not fresh any more: another page may have shown it since, and what is done there must not be given away from here
  if (held?.assignment === task.assignment) Object.assign(task, { until: held.until, fresh: held.fresh });
  else giveBack([held]);
}

const isBegun = ({ assignment }) => drawer.get(`draft:${assignment}`) !== null;

/**
 * Let others have at once what was handed to this page first and what nobody began. What was in hand before it came may be
 * begun on another device, and is not this page's to give.
 */
function giveBack(tasks) {
  const held = tasks.filter((each) => each?.fresh && !isBegun(each)).map(({ assignment, until }) => ({ assignment, until }));
  // a reload leaves, too: the server keeps what it has handed out again by the time this arrives
  return held.length > 0 ? sendLast(root, "/api/leave", meta("csrf-token"), { held }) : Promise.resolve();
}

/** Anyone who leaves holds up no task that they did not begin; what they began waits for them, with its draft. */
function leavePage() {
  leaving.abort();
  leaving = new AbortController(); // who stays after all, to send what waits, asks anew
  if (current && isBegun(current)) keepDraft();
  return giveBack([current, following]);
}

/** First give back, while the server still knows us; but nobody is kept from leaving. */
async function signOut(event) {
  event.preventDefault();
  await Promise.race([leavePage(), new Promise((done) => setTimeout(done, LONGEST_LEAVE_MS))]);
  forgetSent();
  event.target.submit();
}

/** Others may use this browser: of what was written here stays what is not on the server's disk yet, and what was begun and waits. */
function forgetSent() {
  const held = [current, following].filter(Boolean).map(({ assignment }) => `draft:${assignment}`);
  for (const name of drawer.names("draft:")) if (!held.includes(name)) drawer.remove(name);
  for (const name of ["actions", "undo"]) drawer.remove(name);
}

// ---------------------------------------------------------------------------------------------------------------- showing

/** @param {{assignment: number, until: string, html: string} | null} task - from our server, where every text in it was made safe */
function show(task) {
  byId("waiting").hidden = true;
  byId("nothing-left").hidden = task !== null;
  if (task === null) {
    current = null;
    stage.replaceChildren();
    queued.drop("nothing is left for you");
    say("Nothing is left for you.");
    return;
  }
  stage.innerHTML = task.html;
  setUp(task.html);
  Object.assign(current, { until: task.until, fresh: task.fresh }); // newer than the page's words, if it was shown before
  window.scrollTo(0, 0);
  stage.focus({ preventScroll: true });
  say(`Next task. ${byId("count").textContent}`);
}

function setUp(html) {
  const assignment = Number(stage.querySelector(".task").dataset.assignment);
  answered.delete(assignment);
  isPainted = false;
  current = new TaskView(stage, html, drawer.get(`draft:${assignment}`), { changed: keepDraft, chosen: sendIfAtOnce, say, notice, call });
  kind = current.kind;
  current.element.addEventListener("click", clicked);
  byId("answer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  const task = current;
  requestAnimationFrame(() =>
    setTimeout(() => {
      if (current !== task) return;
      isPainted = true;
      queued.press();
    }),
  );
}

function keepDraft() {
  if (current) drawer.set(`draft:${current.assignment}`, { ...current.draft, at: Date.now() });
}

function showProgress({ num_mine: mine, num_done: done, num_wanted: wanted }) {
  byId("bar").max = Math.max(wanted, 1);
  byId("bar").value = done;
  byId("count").textContent = `${mine} by you · ${done} of ${wanted} in all`;
}

function say(text) {
  byId("said").textContent = text;
}

// -------------------------------------------------------------------------------------------------------------- answering

function submit() {
  if (current === null) return;
  const { missing } = current;
  notice(missing);
  if (missing) {
    current.goToMissing();
    queued.drop("the answer before them could not be sent");
    return;
  }
  keepDraft(); // an undo brings it back
  leave("/api/judgments", { key: newKey(), ...current.submission }, "judged");
}

function sendIfAtOnce() {
  if (byId("at-once").checked) submit();
}

function skip() {
  if (current) leave("/api/skip", { assignment: current.assignment }, "skipped");
}

async function undo() {
  if (isUndoing) return;
  isUndoing = true;
  try {
    const problem = (await outbox.flush()) ? await takeBack() : NOT_REACHED;
    notice(problem);
    if (problem) queued.drop("nothing was taken back");
  } finally {
    isUndoing = false;
  }
  queued.press();
}

/** Returns what is in the way, or "". */
async function takeBack() {
  const last = actions().at(-1);
  const isSkip = last?.what === "skipped";
  // the same key until the server has answered: an undo whose answer was lost must not take back a second judgment
  const key = drawer.get("undo") ?? newKey();
  drawer.set("undo", key);
  const result = await call("/api/undo", { key, skipped: isSkip ? last.assignment : null });
  if (result.outcome !== LATER) drawer.remove("undo");
  if (result.outcome !== DONE) {
    if (isSkip && result.outcome !== LATER) drawer.set("actions", actions().slice(0, -1)); // gone for good: the next undo goes further back
    return result.error ?? NOT_REACHED;
  }
  if (result.data.task === null) return "There is nothing to take back.";
  drawer.set("actions", actions().slice(0, -1));
  const displaced = following;
  following = current && { assignment: current.assignment, until: current.until, fresh: current.fresh, html: current.html };
  giveBack([displaced]); // a page holds two
  showProgress(result.data.progress);
  show(result.data.task);
  say("Your last answer is taken back; change it and send it again.");
  return "";
}

// -------------------------------------------------------------------------------------------------------- keys and clicks

const DO = {
  undo,
  skip,
  diff: () => current.toggle("diff"),
  highlight: () => current.highlight(),
};

function clicked(event) {
  const isByPointer = event.detail > 0;
  const button = event.target.closest("[data-do]");
  if (button && isByPointer) stage.focus({ preventScroll: true }); // Enter is for sending, not for pressing this again
  if (button) DO[button.dataset.do]();
  // arrow keys walk through radio buttons and click each they pass: that must not send
  if (event.target.name === "choice" && isByPointer) sendIfAtOnce();
}

function open(id) {
  byId(id).showModal();
  byId(`${id}-title`).focus();
}

const KEYS = {
  s: skip,
  u: undo,
  d: DO.diff,
  h: DO.highlight,
  c: () => byId("comment").focus(),
  f: () => current.element.querySelector('input[name="flag"]').focus(),
  a: () => current.prefer("a"),
  b: () => current.prefer("b"),
  x: () => current.nextQuality(),
  k: () => current.nextLabelProbability(),
  g: () => open("guidelines"),
  "?": () => open("keys"),
  t: () => current.tie(),
  0: () => current.tie(),
  "=": () => current.tie(),
  n: () => current.step(1),
  p: () => current.step(-1),
};
const WITHOUT_TASK = new Set(["u", "g", "?"]);

function keyed(event) {
  if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
  const isWriting = event.target.matches("textarea:not([readonly]), input[type=text]");
  if (event.key === "Escape" && isWriting) event.target.blur();
  if (event.key === "Escape") queued.drop("Escape was pressed");
  const doIt = actionOf(event, isWriting);
  if (!doIt) return;
  event.preventDefault();
  if (!queued.takes(event) && !event.repeat) doIt();
}

/** What a key does; undefined where it is none of ours. */
function actionOf({ target, key, ctrlKey, metaKey, altKey }, isWriting) {
  if (key === "Enter") {
    const isOwn = target.closest("button:not(.chip), a, summary, textarea[readonly]");
    return isOwn || (isWriting && !ctrlKey && !metaKey) ? undefined : submit;
  }
  if (isWriting || ctrlKey || metaKey || altKey || !byId("single-keys").checked) return undefined;
  if (queued.wants(key)) return () => {};
  if (!byId("nothing-left").hidden && !WITHOUT_TASK.has(key)) return undefined;
  return KEYS[key] ?? (/^[1-7]$/.test(key) ? () => current.digit(Number(key)) : undefined);
}

// ------------------------------------------------------------------------------------------------------------------ start

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameTheme() {
  byId("switch-theme").textContent = isDark() ? "Light" : "Dark";
}

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  document.cookie = `theme=${theme}; path=${root || "/"}; max-age=31536000; SameSite=Lax`;
  nameTheme();
}

/** Drafts of tasks that were begun here and that nobody came back to. */
function forgetOldDrafts() {
  const oldest = Date.now() - LONGEST_DRAFT_MS;
  for (const name of drawer.names("draft:")) if (drawer.get(name).at < oldest) drawer.remove(name);
}

function remember(id, standard) {
  const box = byId(id);
  box.checked = settings.get(id) ?? standard;
  box.addEventListener("change", () => settings.set(id, box.checked));
}

function listen() {
  document.addEventListener("keydown", keyed);
  document.addEventListener("visibilitychange", () => {
    current?.countTime();
    if (document.visibilityState === "hidden") queued.drop("the page was left");
  });
  for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("close", () => queued.press());
  for (const sign of ["input", "keydown", "pointermove", "scroll"]) {
    document.addEventListener(sign, () => (isAtWork = true), { passive: true });
  }
  window.addEventListener("pagehide", leavePage);
  byId("sign-out").addEventListener("submit", signOut);
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload(); // back to a page that was left: what it held went back
  });
  window.addEventListener("online", goOn);
  window.addEventListener("beforeunload", (event) => {
    if (outbox.names.length > 0 && outbox.trouble?.outcome !== SIGNED_OUT) event.preventDefault();
  });
  const clicks = {
    "open-guidelines": () => open("guidelines"),
    "open-keys": () => open("keys"),
    "switch-theme": switchTheme,
    "outbox-now": () => (outbox.trouble?.outcome === SIGNED_OUT ? location.reload() : goOn()),
    "look-again": goOn,
    "undo-last": undo,
    "highlight-leave": () => byId("highlight").close(),
  };
  byId("highlight-reason").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("highlight-form").querySelector(".main").click();
  });
  for (const [id, action] of Object.entries(clicks)) byId(id).addEventListener("click", () => action());
}

function start() {
  remember("at-once", false);
  remember("single-keys", true);
  nameTheme();
  listen();
  setInterval(renew, RENEW_MS);
  if (stage.querySelector(".task")) setUp(stage.innerHTML);
  forgetOldDrafts();
  if (current && outbox.holds(current.assignment)) advance(); // answered before a reload, and not sent yet
  else goOn();
}

start();
