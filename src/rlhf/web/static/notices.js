// The line at the top of the page that shows errors.

const MOST_KEPT = 3;
const byId = (id) => document.getElementById(id);

export class Notices {
  constructor() {
    this.kept = [];
    byId("notice-close").addEventListener("click", () => {
      this.kept = [];
      this.show("");
    });
  }

  /** Until the next one; "" for none. */
  show(text) {
    const shown = [...this.kept, text].filter(Boolean).join(" ");
    byId("notice-text").textContent = shown;
    byId("notice").hidden = !shown;
  }

  /** Until it is closed, whatever comes meanwhile. */
  keep(text) {
    this.kept = [...this.kept, text].slice(-MOST_KEPT);
    this.show("");
  }
}
