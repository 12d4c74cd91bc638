// Drafts, and answers that are not on the server's disk yet: they survive a reload, a dead server and a closed laptop.

/** Named values in localStorage; if the browser refuses that, in memory, and `isSafe` is false. */
export class Drawer {
  constructor(prefix) {
    this.prefix = prefix;
    this.memory = new Map();
    this.isSafe = true;
  }

  get(name) {
    try {
      const text = localStorage.getItem(this.prefix + name);
      if (text !== null) return JSON.parse(text);
    } catch {
      this.isSafe = false;
    }
    return this.memory.get(name) ?? null;
  }

  set(name, value) {
    try {
      localStorage.setItem(this.prefix + name, JSON.stringify(value));
      this.memory.delete(name);
    } catch {
      this.isSafe = false; // full, or forbidden
      this.memory.set(name, value);
    }
  }

  remove(name) {
    this.memory.delete(name);
    try {
      localStorage.removeItem(this.prefix + name);
    } catch {
      this.isSafe = false;
    }
  }

  /** Names with this prefix, sorted. */
  names(start) {
    const names = new Set(this.memory.keys());
    try {
      for (const key of Object.keys(localStorage)) {
        if (key.startsWith(this.prefix)) names.add(key.slice(this.prefix.length));
      }
    } catch {
      this.isSafe = false;
    }
    return [...names].filter((name) => name.startsWith(start)).sort();
  }
}

export const DONE = "done";
export const REFUSED = "refused";
export const SIGNED_OUT = "signed out";
export const LATER = "later";

const LONGEST_WAIT_MS = 15_000;
const TIMEOUT_MS = 20_000;

/** Text without lone surrogates, which a keyboard or a paste can leave and servers reject: `toWellFormed`, for older browsers. */
function whole(text) {
  return text.replace(/\p{Surrogate}/gu, "\uFFFD");
}

function posted(csrfToken, body) {
  return {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": csrfToken },
    body: JSON.stringify(body, (_name, value) => (typeof value === "string" ? whole(value) : value)),
  };
}

/** POST that may outlive the page and needs no response; a beacon with our CSRF header. */
export function sendLast(root, path, csrfToken, body) {
  return fetch(root + path, { ...posted(csrfToken, body), keepalive: true }).catch(() => {});
}

/** POST as JSON, until `leaving` is aborted. Returns {outcome, data, error, waitMs}; never throws. */
export async function post(root, path, csrfToken, body, leaving) {
  const ended = new AbortController();
  const end = () => ended.abort();
  const timer = setTimeout(end, TIMEOUT_MS);
  leaving?.addEventListener("abort", end);
  let answer, data;
  try {
    answer = await fetch(root + path, { ...posted(csrfToken, body), signal: ended.signal });
    data = await answer.json().catch(() => null);
  } catch {
    return { outcome: LATER };
  } finally {
    clearTimeout(timer);
    leaving?.removeEventListener("abort", end);
  }
  if (answer.ok) return isOurs(data) ? { outcome: DONE, data } : { outcome: LATER };
  const error = data?.error;
  // without our error message the response is not from our server: a proxy, a captive portal, or another program on the port
  if (typeof error !== "string") return { outcome: LATER };
  if (answer.status === 401 || answer.status === 403) return { outcome: SIGNED_OUT, error };
  if (answer.status === 408 || answer.status === 429 || answer.status >= 500) {
    const seconds = Number(answer.headers.get("Retry-After"));
    return { outcome: LATER, error, waitMs: seconds > 0 ? seconds * 1000 : undefined };
  }
  return { outcome: REFUSED, error };
}

function isOurs(data) {
  return data !== null && (typeof data.progress === "object" || Array.isArray(data.html));
}

/** Answers to be sent. Each stays in the drawer under its own key until the server confirms it. */
export class Outbox {
  /**
   * @param {Drawer} drawer
   * @param {(path: string, body: object) => Promise<object>} send - as `post`
   * @param {{changed: Function, done: Function, refused: Function}} tell
   */
  constructor(drawer, send, tell) {
    this.drawer = drawer;
    this.send = send;
    this.tell = tell;
    this.trouble = null;
    this.tries = 0;
    this.timer = null;
    this.running = null;
    this.count = 0;
  }

  get names() {
    return this.drawer.names("out:");
  }

  holds(assignment) {
    return this.names.some((name) => this.drawer.get(name)?.body.assignment === assignment);
  }

  /** @param {string} about - identifies a rejected answer to the annotator */
  add(path, body, about) {
    const order = `${String(Date.now()).padStart(15, "0")}-${String(this.count++).padStart(6, "0")}`;
    this.drawer.set(`out:${order}`, { path, body, about });
  }

  /** Send all, oldest first; true when nothing is left. Called twice at once, it runs once. */
  flush() {
    this.running ??= this.#drain().finally(() => {
      this.running = null;
    });
    return this.running;
  }

  async #drain() {
    clearTimeout(this.timer);
    for (let name; (name = this.names[0]) !== undefined; ) {
      const { path, body, about } = this.drawer.get(name);
      const result = await this.send(path, body);
      if (result.outcome === DONE) {
        this.drawer.remove(name);
        this.tell.done(body, result.data);
      } else if (result.outcome === REFUSED) {
        this.tell.refused({ order: name.slice("out:".length), body, about }, result.error); // before it is out of the drawer
        this.drawer.remove(name);
      } else {
        this.#wait(result);
        return false;
      }
    }
    this.trouble = null;
    this.tries = 0;
    this.tell.changed();
    return true;
  }

  #wait(result) {
    this.trouble = result;
    this.tries += 1;
    const growing = Math.min(LONGEST_WAIT_MS, 500 * 2 ** this.tries);
    // with jitter, so that a restarted server is not overloaded
    const waitMs = (result.waitMs ?? growing) * (0.8 + 0.4 * Math.random());
    this.timer = setTimeout(() => this.tell.retry(), waitMs);
    this.tell.changed();
  }
}

/** A unique name; crypto.randomUUID is missing if the page was loaded by plain http from another machine. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
