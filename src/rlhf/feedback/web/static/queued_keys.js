// Keys that are pressed before the next task is on the screen: they wait for it and act on it in order. Where it could be
// another task than they were meant for, they are not used, and the page says so.

const LONGEST_MS = 20_000; // older ones nobody remembers
const MOST = 100;
const PAUSE_MS = 1000; // after keys were thrown away: anyone who types on has not seen it yet
const QUEUED = new Set([..."01234567abtsuxknpd=", "Enter"]); // none that leads to a text field or a dialog
const ANYTIME = new Set(["g", "?"]); // they ask for no task
const MOVES = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"]); // of a ranking

export class QueuedKeys {
  /** @param {{isReady: () => boolean, kind: () => string, notice: Function, changed: Function}} page - as it is at the moment */
  constructor(page) {
    this.page = page;
    this.keys = []; // {key, kind, at}
    this.isPressing = false;
    this.deafUntil = 0;
    this.lost = 0;
    this.why = "";
  }

  /** Whether a key that does nothing on this page otherwise is one that may wait. */
  wants(key) {
    return MOVES.has(key) && this.page.kind() === "ranking" && !this.page.isReady();
  }

  /** Take a key; false where it can act at once. */
  takes({ key, repeat }) {
    if (this.isPressing) return false;
    if (performance.now() < this.deafUntil) {
      this.lost += Number(!repeat);
      this.#stop();
      return true;
    }
    if (ANYTIME.has(key) || (this.keys.length === 0 && this.page.isReady())) return false;
    if (repeat) return true;
    this.keys.push({ key, kind: this.page.kind(), at: performance.now() });
    if (!QUEUED.has(key) && !MOVES.has(key)) this.drop(`${key} works on a task that is on the screen`);
    else if (this.keys.length > MOST) this.drop("they are too many");
    this.page.changed();
    return true;
  }

  /** Press what waits, as far as the page is ready for it. */
  press() {
    while (this.keys.length > 0 && this.page.isReady()) {
      const { key, kind, at } = this.keys[0];
      if (performance.now() - at > LONGEST_MS) this.drop("the task came too late");
      else if (this.page.kind() !== kind) this.drop("the next task asks something else");
      else this.#pressOne(key);
    }
    this.page.changed();
  }

  #pressOne(key) {
    this.keys.shift();
    this.isPressing = true;
    try {
      document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    } finally {
      this.isPressing = false;
    }
  }

  /** Throw away what waits, and what is typed on before a pause: it was meant for something else. */
  drop(why) {
    if (this.keys.length === 0) return;
    this.lost = this.keys.length;
    this.keys = [];
    this.why = why;
    this.#stop();
    this.page.changed();
  }

  #stop() {
    this.deafUntil = performance.now() + PAUSE_MS;
    const keys = this.lost === 1 ? "1 key that was pressed ahead was" : `${this.lost} keys that were pressed ahead were`;
    this.page.notice(`${keys} not used: ${this.why}.`);
  }
}
