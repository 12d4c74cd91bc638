// Text written in rejected answers: it stays visible until the annotator discards it.

const byId = (id) => document.getElementById(id);

export class Refused {
  /** @param {Drawer} drawer - where it is stored beyond the page */
  constructor(drawer) {
    this.drawer = drawer;
    byId("refused-discard").addEventListener("click", () => this.#discard());
    this.#show();
  }

  get #names() {
    return this.drawer.names("refused:");
  }

  /** @param {{order: string, body: object, about: string}} answer - as the outbox held it; a skip holds nothing that was written */
  keep({ order, body: { comment = "", spans = [] }, about }) {
    const marks = spans.map(({ text, reason }) => (reason ? `“${text}”: ${reason}` : `“${text}”`));
    const written = [comment, ...marks].filter((part) => part.trim());
    if (written.length > 0) this.drawer.set(`refused:${order}`, [`On “${about}”:`, ...written].join("\n"));
    this.#show();
  }

  #show() {
    const texts = this.#names.map((name) => this.drawer.get(name));
    byId("refused").hidden = texts.length === 0;
    byId("refused-text").value = texts.join("\n\n");
  }

  #discard() {
    for (const name of this.#names) this.drawer.remove(name);
    this.#show();
  }
}
