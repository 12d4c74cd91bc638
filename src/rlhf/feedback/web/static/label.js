// The labeling page: shows a task, passes the answer to the outbox and continues with the next task, which is already loaded.

import { DONE, Drawer, LATER, Outbox, SIGNED_OUT, newKey, post, sendLast } from "./keeping.js";
import { Notices } from "./notices.js";
import { QueuedKeys } from "./queued_keys.js";
import { Refused } from "./refused.js";
import { TaskView } from "./task.js";

const meta = (name) => document.querySelector(`meta[name="${name}"]`).content;
const byId = (id) => document.getElementById(id);
const root = meta("root");
const drawer = new Drawer(`rlhf:${meta("store")}:${meta("annotator")}:`); // another store or annotator must not send what is stored here
const settings = new Drawer("rlhf:settings:");
const call = (path, body) => post(root, path, meta("csrf-token"), body);
const askForTask = (body) => post(root, "/api/next", meta("csrf-token"), body, leaving.signal);
const KEPT_ACTIONS = 20;
const RENEW_MS = 5 * 60_000;
const LONGEST_LEAVE_MS = 2000;
const LONGEST_DRAFT_MS = 30 * 86_400_000;
const NOT_REACHED = "Undo needs the server, which can't be reached.";

const stage = byId("task");
let current = null; // the TaskView on the screen
let following = null; // {assignment, until, fresh, html}, prefetched
let leaving = new AbortController(); // responses must not arrive after the page was left
let isGoingOn = false;
let isAtWork = false;
let isUndoing = false;
let isPainted = false; // whether the task in `current` has been on the screen: keys must not act on a task that was not visible
let kind = ""; // of the newest task
const answered = new Set(); // on this page: the server may not know yet

// ---------------------------------------------------------------------------------------------------------------- sending

const notices = new Notices();
const notice = (text) => notices.show(text);
const refused = new Refused(drawer);
const outbox = new Outbox(drawer, call, {
  changed: tellOutbox,
  done: (_body, data) => showProgress(data.progress),
  refused: (answer, error) => {
    refused.keep(answer);
    notices.keep(`One answer was rejected: ${error}`);
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
  const where = drawer.isSafe ? "stored in this browser" : "stored only while this page is open";
  const signedOut = trouble.outcome === SIGNED_OUT;
  byId("outbox-text").textContent = signedOut
    ? `${trouble.error} ${kept} ${where} and sent after you sign in again.`
    : `The server can't be reached${trouble.error ? ` (${trouble.error})` : ""}. ${kept} ${where} and sent when it is available again.`;
  byId("outbox-now").textContent = signedOut ? "Sign in" : "Try now";
}

/** Send queued answers, then prefetch the next task; safe to call at any time. */
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
  else if (isAnother) giveBack([task]); // an undo replaced it during the request
  if (current === null) advance(); // answered during the request
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
  drawer.remove("undo"); // the next undo applies to this one
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

/** Renew the assignment of a task in progress, so that it does not expire. */
async function renew() {
  const task = current;
  const isNeeded = isAtWork && task && document.visibilityState === "visible";
  isAtWork = false;
  if (!isNeeded) return;
  const result = await askForTask({ beside: following?.assignment ?? null });
  const held = result.outcome === DONE ? result.data.task : null;
  // no longer fresh: another page may have shown it since, and this page must not release work done there
  if (held?.assignment === task.assignment) Object.assign(task, { until: held.until, fresh: held.fresh });
  else giveBack([held]);
}

const isBegun = ({ assignment }) => drawer.get(`draft:${assignment}`) !== null;

/**
 * Release immediately the tasks that were assigned to this page and not started. Tasks assigned earlier may have been
 * started on another device, so this page does not release them.
 */
function giveBack(tasks) {
  const held = tasks.filter((each) => each?.fresh && !isBegun(each)).map(({ assignment, until }) => ({ assignment, until }));
  // a reload leaves, too: the server ignores this for tasks that it has reassigned in the meantime
  return held.length > 0 ? sendLast(root, "/api/leave", meta("csrf-token"), { held }) : Promise.resolve();
}

/** Leaving the page releases tasks that were not started; started ones stay reserved, with their drafts. */
function leavePage() {
  leaving.abort();
  leaving = new AbortController(); // if the page stays open to send queued answers, it requests tasks again
  if (current && isBegun(current)) keepDraft();
  return giveBack([current, following]);
}

/** Release tasks first, while still signed in; but never prevent signing out. */
async function signOut(event) {
  event.preventDefault();
  await Promise.race([leavePage(), new Promise((done) => setTimeout(done, LONGEST_LEAVE_MS))]);
  forgetSent();
  event.target.submit();
}

/** Others may use this browser: keep only answers that are not on the server yet, and drafts of started tasks. */
function forgetSent() {
  const held = [current, following].filter(Boolean).map(({ assignment }) => `draft:${assignment}`);
  for (const name of drawer.names("draft:")) if (!held.includes(name)) drawer.remove(name);
  for (const name of ["actions", "undo"]) drawer.remove(name);
}

// ---------------------------------------------------------------------------------------------------------------- showing

/** @param {{assignment: number, until: string, html: string} | null} task - from the server, which sanitized all text in it */
function show(task) {
  byId("waiting").hidden = true;
  byId("nothing-left").hidden = task !== null;
  if (task === null) {
    current = null;
    stage.replaceChildren();
    queued.drop("no tasks are left");
    say("No tasks left for you.");
    return;
  }
  stage.innerHTML = task.html;
  setUp(task.html);
  Object.assign(current, { until: task.until, fresh: task.fresh }); // newer than the page's values, if it was shown before
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
  byId("count").textContent = `${mine} by you · ${done} of ${wanted} total`;
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
    queued.drop("the previous answer could not be sent");
    return;
  }
  keepDraft(); // for undo
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
    if (problem) queued.drop("nothing was undone");
  } finally {
    isUndoing = false;
  }
  queued.press();
}

/** Returns the problem, or "". */
async function takeBack() {
  const last = actions().at(-1);
  const isSkip = last?.what === "skipped";
  // the same key until the server has responded: an undo whose response was lost must not undo a second judgment
  const key = drawer.get("undo") ?? newKey();
  drawer.set("undo", key);
  const result = await call("/api/undo", { key, skipped: isSkip ? last.assignment : null });
  if (result.outcome !== LATER) drawer.remove("undo");
  if (result.outcome !== DONE) {
    if (isSkip && result.outcome !== LATER) drawer.set("actions", actions().slice(0, -1)); // gone for good: the next undo goes further back
    return result.error ?? NOT_REACHED;
  }
  if (result.data.task === null) return "There is nothing to undo.";
  drawer.set("actions", actions().slice(0, -1));
  const displaced = following;
  following = current && { assignment: current.assignment, until: current.until, fresh: current.fresh, html: current.html };
  giveBack([displaced]); // a page holds two
  showProgress(result.data.progress);
  show(result.data.task);
  say("Your last answer was undone; change it and send it again.");
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
  // arrow keys click each radio button that they pass: that must not send
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

/** The action of a key; undefined for other keys. */
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

/** Old drafts of tasks that were started here and never resumed. */
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
    if (event.persisted) location.reload(); // restored from the back/forward cache: its tasks were released
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
