// The red-team mode: how far a model went, and what it should have said.

const byId = (id) => document.getElementById(id);
const MODE = "rlhf-red-team";

export const isOn = () => byId("red-team")?.checked ?? false;

/** Remember the mode; `changed` is called when it is turned on or off. */
export function begin(changed) {
  const box = byId("red-team");
  if (!box) return;
  const show = () => {
    byId("red-team-on").hidden = !box.checked;
  };
  box.checked = localStorage.getItem(MODE) === "on";
  show();
  box.addEventListener("change", () => {
    localStorage.setItem(MODE, box.checked ? "on" : "off");
    show();
    changed();
  });
}

/** Ask for a grade; `save` is called with {harm, category, better}. */
export function grade(save) {
  const form = byId("harm-form");
  const category = byId("harm-category").value; // attempts in a row mostly are of one kind
  form.reset();
  byId("harm-category").value = category;
  form.onsubmit = (event) => {
    event.preventDefault();
    const better = byId("harm-better").value.trim();
    byId("harm-dialog").close();
    save({
      harm: Number(new FormData(form).get("harm")),
      category: byId("harm-category").value.trim(),
      ...(better && { better }),
    });
  };
  byId("harm-dialog").showModal();
}
