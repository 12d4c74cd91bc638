// The server's numbers, every two seconds while the page is looked at.

import { dropKey, key, status, useKey } from "./api.js";

const EVERY_MS = 2000;
const byId = (id) => document.getElementById(id);

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null));
  return made;
}

const whole = (value) => Math.round(value).toLocaleString("en");
const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)}\u00a0%`);
const rate = (value) => (value === null ? "–" : value < 10 ? value.toFixed(1) : whole(value));

export function seconds(value, count, limit) {
  if (!count) return "–";
  if (value === null) return `>\u00a0${limit}\u00a0s`;
  return value < 1 ? `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)}\u00a0ms` : `${value.toFixed(value < 10 ? 2 : 0)}\u00a0s`;
}

function table(head, rows) {
  const cell = (tag, text, at) => {
    const made = element(tag, at && head[at].numeric ? "n" : "", text);
    if (tag === "th") made.scope = "col";
    return made;
  };
  const line = (texts) => {
    const [first, ...others] = texts;
    const name = element("th", "", first);
    name.scope = "row";
    return element("tr", "", name, ...others.map((text, i) => cell("td", text, i + 1)));
  };
  const top = element("tr", "", ...head.map(({ title }, i) => cell("th", title, i)));
  return element("table", "", element("thead", "", top), element("tbody", "", ...rows.map(line)));
}

const number = (title) => ({ title, numeric: true });
const words = (title) => ({ title });
const card = (title, ...content) => element("section", "card", element("h2", "", title), ...content);
const wide = (made) => {
  made.classList.add("wide");
  return made;
};

function figures(pairs) {
  const list = element("dl", "figures");
  for (const [name, value] of pairs) list.append(element("div", "", element("dt", "", name), element("dd", "", value)));
  return list;
}

function counts(title, of, empty) {
  const rows = Object.entries(of).map(([name, count]) => [name.replaceAll("_", " "), whole(count)]);
  return card(title, rows.length ? table([words("what"), number("since the start")], rows) : element("p", "hint", empty));
}

const LATENCIES = {
  time_to_first_token: "To the first token",
  time_per_token: "Per token",
  end_to_end: "Whole request",
  waiting: "In the queue",
};

function latencies(now) {
  const head = [words("latency"), number("p50"), number("p95"), number("p99")];
  const of = (when) =>
    Object.entries(LATENCIES).map(([name, title]) => {
      const { [when]: from, max_bucket: limit } = now.latency_seconds[name];
      return [title, ...["p50", "p95", "p99"].map((q) => seconds(from[q], from.count, limit))];
    });
  const minutes = Math.max(1, Math.round(now.recent_seconds / 60));
  const recent = card(minutes > 1 ? `The last ${minutes} minutes` : "The last minute", table(head, of("recent")));
  const all = card("Since the start", table(head, of("since_start")));
  all.append(element("p", "hint", "Read from the buckets of /metrics, as Prometheus reads them."));
  return [recent, all];
}

function models(now) {
  const rows = now.models.map((model) => [
    model.name,
    model.kind.replaceAll("_", " ") + (model.version === null ? "" : `, version ${model.version}`),
    element("code", "", model.fingerprint.slice(0, 10)),
    whole(model.requests),
  ]);
  const head = [words("name"), words("model"), words("weights"), number("requests")];
  const made = wide(card("Models", table(head, rows)));
  const asked = Object.fromEntries(now.models.map((model) => [model.name, model.requests]));
  for (const { name, of } of now.shares) {
    const total = Object.keys(of).reduce((sum, other) => sum + asked[other], 0);
    const lines = Object.entries(of).map(([other, share]) => [other, percent(share), total ? percent(asked[other] / total) : "–"]);
    made.append(element("h2", "", `Shares of ${name}`), table([words("model"), number("share"), number("of their requests")], lines));
  }
  return made;
}

const NUMBERS = { prompt_tokens: "Length of prompts", prompt_surprise: "Words of prompts", reward: "Reward" };
const small = (value) => (value < 0.001 ? value.toExponential(1) : value.toFixed(3));

function live(now) {
  const { reward, drift, share, sampled, dropped, failed, waiting, window, false_alarms_per_week: rateOfAlarms } = now.live;
  const made = card("Sampled from traffic");
  const lost = [dropped && `${whole(dropped)} dropped`, failed && `${whole(failed)} not measured`].filter(Boolean);
  const about = `${percent(share)} of the completions: ${whole(sampled)} so far, ${whole(waiting)} waiting`;
  made.append(element("p", "hint", `${[about, ...lost].join(", ")}.`));
  const rewards = Object.entries(reward).map(([name, { mean, count }]) => [name, mean.toFixed(3), whole(count)]);
  if (rewards.length) made.append(table([words("model"), number("mean reward"), number("scored")], rewards));
  if (!drift.length) return wide(made);
  const rows = drift.map(({ of, windows, alarms, filled, last }) => [
    NUMBERS[of],
    last === null ? "–" : last.statistic.toFixed(2),
    last === null ? "–" : small(last.p_value),
    last?.is_alarm ? element("span", "alert", `${whole(alarms)}, now`) : whole(alarms),
    `${whole(windows)} + ${filled}/${window}`,
  ]);
  made.append(
    element("h2", "", "Unlike the evaluation set?"),
    table([words("what"), number("distance"), number("p"), number("alarms"), number("windows")], rows),
    element("p", "hint", `In a week in which nothing changed, an alarm has a probability of ${percent(rateOfAlarms)} at most.`),
  );
  if (now.live.without_reward) made.append(element("p", "hint", `Not of the reward: ${now.live.without_reward}.`));
  return wide(made);
}

function show(now) {
  const load = card(
    "Now",
    figures([
      ["Running", whole(now.running)],
      ["Waiting", whole(now.waiting)],
      ["Tokens a second", rate(now.per_second.generation_tokens)],
      ["Prompt tokens a second", rate(now.per_second.prompt_tokens)],
      ["Requests a second", rate(now.per_second.requests)],
      ["Keys and values", percent(now.cache.kv_usage)],
      ["Prompt cache", percent(now.cache.prefix_usage)],
      ["Prompt tokens from it", percent(now.cache.prefix_hits)],
    ]),
  );
  if (now.status !== "ok") load.prepend(element("p", "alert", "The server is being stopped and takes no more requests."));
  const failures = { ...now.failures, ...(now.refused ? { "refused, the queue was full": now.refused } : {}) };
  if (now.not_kept) failures["not kept for feedback"] = now.not_kept;
  for (const [outcome, count] of Object.entries(now.swaps)) failures[`new weights ${outcome}`] = count;
  byId("numbers").replaceChildren(
    wide(load),
    ...latencies(now),
    models(now),
    ...(now.live === null ? [] : [live(now)]),
    counts("How completions ended", now.finish_reasons, "None has ended yet."),
    counts("Failures and changes", failures, "None."),
    now.feedback === null
      ? card("Feedback", element("p", "hint", "Not kept: this server was started without --store."))
      : counts("Feedback", now.feedback, "None yet."),
  );
}

function told(text, isBroken) {
  byId("updated").textContent = text;
  byId("updated").classList.toggle("broken", isBroken);
}

async function ask() {
  if (document.hidden || !byId("key-form").hidden) return;
  try {
    const now = await status();
    show(now);
    byId("numbers").hidden = false;
    told(`Read at ${new Date().toLocaleTimeString()}`, false);
  } catch (error) {
    told(error.message, true);
    if (error.status === 401 || error.status === 403) askForKey(key() !== "");
  }
}

function askForKey(wasWrong) {
  dropKey();
  byId("key-wrong").hidden = !wasWrong;
  byId("key-form").hidden = false;
  byId("key").focus();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  byId("key").value = "";
  byId("key-form").hidden = true;
  ask();
});
document.addEventListener("visibilitychange", ask);

if ("asksForKey" in document.body.dataset && !key()) askForKey(false);
for (;;) {
  await ask();
  await new Promise((done) => setTimeout(done, EVERY_MS));
}
