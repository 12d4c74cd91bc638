// A line of chips, best first: dragged with a pointer, or selected and moved by keys. ">" and "=" between them show ties.

export class Ranking {
  /** @param {HTMLElement} list - the <ol>; @param {() => void} changed */
  constructor(list, changed) {
    this.list = list;
    this.changed = changed;
    this.isTouched = false;
    list.addEventListener("keydown", (event) => this.#key(event));
    list.addEventListener("pointerdown", (event) => this.#grab(event));
    list.addEventListener("click", (event) => {
      const tie = event.target.closest(".tie");
      if (tie) this.toggleTie(tie.closest("li"));
      if (tie && event.detail > 0) this.take(tie.closest("li")); // by a pointer: Enter is for sending, not for this button
      const chip = event.target.closest(".chip");
      if (chip) this.take(chip.closest("li"));
    });
    this.#show();
  }

  get items() {
    return [...this.list.children];
  }

  get taken() {
    return this.list.querySelector('[aria-pressed="true"]')?.closest("li") ?? null;
  }

  /** Rank of each completion, by its place on the screen; tied ones share a rank and the next one follows it. */
  get ranks() {
    const ranks = [];
    let rank = 0;
    this.items.forEach((item, index) => {
      rank += index > 0 && isTied(item) ? 0 : 1;
      ranks[Number(item.dataset.place)] = Math.max(rank, 1);
    });
    return ranks;
  }

  get state() {
    return { order: this.items.map((item) => Number(item.dataset.place)), tied: this.items.map(isTied), isTouched: this.isTouched };
  }

  set state({ order, tied, isTouched }) {
    for (const place of order) this.list.append(this.#at(place));
    this.items.forEach((item, index) => setTied(item, tied[index]));
    this.isTouched = isTouched;
    this.#show();
  }

  #at(place) {
    return this.list.querySelector(`li[data-place="${place}"]`);
  }

  /** Choose the chip that keys move. */
  take(item) {
    const target = typeof item === "number" ? this.#at(item) : item;
    if (!target) return;
    for (const each of this.items) each.querySelector(".chip").setAttribute("aria-pressed", String(each === target));
    target.querySelector(".chip").focus({ preventScroll: true });
    this.changed();
  }

  move(item, index) {
    const others = this.items.filter((each) => each !== item);
    const to = Math.max(0, Math.min(others.length, index));
    if (this.items.indexOf(item) === to) return;
    // ties are between neighbors: moving a chip away or between them ends the tie
    const after = item.nextElementSibling;
    if (after) setTied(after, false);
    setTied(item, false);
    if (others[to]) setTied(others[to], false);
    this.list.insertBefore(item, others[to] ?? null);
    this.#touched();
  }

  toggleTie(item) {
    if (!item?.previousElementSibling) return;
    setTied(item, !isTied(item));
    this.#touched();
  }

  #touched() {
    this.isTouched = true;
    this.#show();
    this.changed();
  }

  #show() {
    const { ranks, items } = this;
    for (const item of items) {
      const letter = item.querySelector(".chip").textContent.trim();
      const before = item.previousElementSibling?.querySelector(".chip").textContent.trim();
      const tie = item.querySelector(".tie");
      tie.textContent = isTied(item) ? "=" : ">";
      tie.hidden = !before;
      tie.setAttribute("aria-pressed", String(isTied(item)));
      tie.setAttribute("aria-label", `${letter} ties with ${before ?? "nothing"}`);
      item.querySelector(".chip").setAttribute("aria-label", `${letter}, rank ${ranks[Number(item.dataset.place)]} of ${items.length}`);
      if (!item.querySelector(".chip").hasAttribute("aria-pressed")) item.querySelector(".chip").setAttribute("aria-pressed", "false");
    }
  }

  #key(event) {
    const item = event.target.closest("li");
    if (!item || event.ctrlKey || event.altKey || event.metaKey) return;
    const index = this.items.indexOf(item);
    const to = {
      ArrowLeft: index - 1,
      ArrowUp: index - 1,
      ArrowRight: index + 1,
      ArrowDown: index + 1,
      Home: 0,
      End: this.items.length - 1,
    }[event.key];
    if (to !== undefined) {
      this.move(item, to);
      this.take(item);
    } else if (event.key === "=") {
      this.toggleTie(item);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  #grab(event) {
    const chip = event.target.closest(".chip");
    if (!chip || event.button !== 0) return;
    const item = chip.closest("li");
    this.take(item);
    item.classList.add("dragged");
    const leave = new AbortController();
    const follow = (move) => {
      if (move.pointerId !== event.pointerId) return;
      this.move(item, this.items.filter((each) => each !== item && isBefore(each, move)).length);
    };
    const drop = (end) => {
      if (end.pointerId !== event.pointerId) return;
      leave.abort();
      item.classList.remove("dragged");
      this.take(item);
    };
    // on the document: an element that is moved in the tree loses pointer capture
    document.addEventListener("pointermove", follow, leave);
    document.addEventListener("pointerup", drop, leave);
    document.addEventListener("pointercancel", drop, leave);
    event.preventDefault();
  }
}

function isTied(item) {
  return item.querySelector(".tie").dataset.tied === "true";
}

function setTied(item, tied) {
  item.querySelector(".tie").dataset.tied = String(Boolean(tied));
}

/** Whether a chip is before the pointer: in a line above it, or in its line and left of it. */
function isBefore(item, pointer) {
  const box = item.querySelector(".chip").getBoundingClientRect();
  if (pointer.clientY > box.bottom + 4 && !hasOneLine(item.parentElement, box)) return true;
  if (pointer.clientY < box.top - 4) return hasOneLine(item.parentElement, box) && box.left + box.width / 2 < pointer.clientX;
  return box.left + box.width / 2 < pointer.clientX;
}

function hasOneLine(list, box) {
  return list.getBoundingClientRect().height < box.height * 1.7;
}
