// One turn of the conversation on the screen.

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function button(label, hint, run, properties = {}) {
  const made = element("button", { type: "button", className: "quiet", ...properties }, label);
  if (hint) made.append(" ", element("kbd", { textContent: hint }));
  made.addEventListener("click", run);
  return made;
}

export class Turn {
  /** `role` is user or assistant; `title` stands over the text. */
  constructor(role, title) {
    const template = document.getElementById("turn-template");
    this.role = role;
    this.node = template.content.firstElementChild.cloneNode(true);
    this.node.classList.add(role);
    this.part = (selector) => this.node.querySelector(selector);
    this.title(title);
    this.text = "";
    this.completionId = null; // null for a text that the server does not know
    this.verdict = null; // the thumb or rating that was given
  }

  title(text) {
    this.part("h2").textContent = text;
  }

  show(text) {
    this.text = text;
    this.part(".text").textContent = text.trimStart(); // models begin with a space
  }

  note(text) {
    this.part(".note").textContent = text;
    this.part(".note").hidden = !text;
  }

  running(is) {
    this.node.classList.toggle("running", is);
    this.node.setAttribute("aria-busy", String(is));
  }

  tools(...buttons) {
    this.part(".toolbar").replaceChildren(...buttons);
    this.part(".toolbar").hidden = !buttons.length;
  }

  /** Let somebody change the text; `save` is called with the new one. */
  edit(save) {
    this.part(".text").hidden = true;
    this.ask("Edited answer", this.text, save, () => {
      this.part(".text").hidden = false;
    });
  }

  /** A field below the text. `save` is called with what was written, if it differs from `value`. */
  ask(label, value, save, done = () => {}) {
    const field = element("textarea", { value, dir: "auto" });
    field.setAttribute("aria-label", label);
    const leave = () => {
      field.remove();
      actions.remove();
      this.part(".toolbar").hidden = false;
      done();
    };
    const keep = () => {
      const written = field.value;
      leave();
      if (written !== value && written.trim()) save(written);
    };
    const actions = element(
      "div",
      { className: "edit-actions" },
      button("Save", "", keep, { className: "main" }),
      button("Cancel", "", leave),
    );
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) keep();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.part(".toolbar").hidden = true;
    this.part(".text").after(field, actions);
    field.focus();
  }
}
