// Keys pressed before the next task is on the screen: they are queued and applied to it in order. If it may be a different
// task than intended, they are dropped, and the page says so.

const LONGEST_MS = 20_000; // older keys are dropped
const MOST = 100;
const PAUSE_MS = 1000; // after keys were dropped: further keys were typed before the notice was seen
const QUEUED = new Set([..."01234567abtsuxknpd=", "Enter"]); // no key that opens a text field or a dialog
const ANYTIME = new Set(["g", "?"]); // they need no task
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

  /** Whether a key that does nothing on this page otherwise may be queued. */
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
    if (!QUEUED.has(key) && !MOVES.has(key)) this.drop(`${key} needs a task on the screen`);
    else if (this.keys.length > MOST) this.drop("there were too many");
    this.page.changed();
    return true;
  }

  /** Apply queued keys while the page is ready for them. */
  press() {
    while (this.keys.length > 0 && this.page.isReady()) {
      const { key, kind, at } = this.keys[0];
      if (performance.now() - at > LONGEST_MS) this.drop("the task came too late");
      else if (this.page.kind() !== kind) this.drop("the next task is of another kind");
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

  /** Drop queued keys, and further keys until a pause: they were meant for another task. */
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
    const keys = this.lost === 1 ? "1 queued key was" : `${this.lost} queued keys were`;
    this.page.notice(`${keys} not used: ${this.why}.`);
  }
}
