// Asks for what has changed, every few seconds while the page is looked at, and puts it in place without closing what is open.

const EVERY_MS = 2000;
const now = document.getElementById("now");
const updated = document.getElementById("updated");
const said = document.getElementById("said");
let { version } = now.dataset;

/** What stays the same of something that can be opened, however often it is made again; an alarm is its own first line. */
const placeOf = (details) => details.dataset.place ?? details.closest("article").querySelector("p").textContent;

function replace(html) {
  const all = [...now.querySelectorAll("details")];
  const open = new Map(all.map((each) => [placeOf(each), each.open]));
  const focused = document.activeElement?.closest("summary")?.parentElement;
  const focusedPlace = focused ? placeOf(focused) : null;
  const before = now.querySelector("h2")?.textContent;
  now.innerHTML = html; // made by our own templates, which escape what they are given
  for (const each of now.querySelectorAll("details")) {
    const place = placeOf(each);
    if (open.has(place)) each.open = open.get(place);
    if (place === focusedPlace) each.querySelector("summary").focus({ preventScroll: true });
  }
  const after = now.querySelector("h2")?.textContent;
  if (after !== before) said.textContent = after;
}

const isBeingSelected = () => {
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && now.contains(selection.anchorNode);
};

async function ask() {
  if (document.hidden || isBeingSelected()) return;
  try {
    const answer = await fetch("/now", { headers: { "If-None-Match": `"${version}"` }, cache: "no-store" });
    if (answer.status === 200) {
      replace(await answer.text());
      version = answer.headers.get("ETag").replaceAll('"', "");
    } else if (answer.status !== 304) {
      throw new Error(`status ${answer.status}`);
    }
    updated.textContent = `Read at ${new Date().toLocaleTimeString()}`;
    updated.classList.remove("broken");
  } catch {
    updated.textContent = "rlhf watch does not answer";
    updated.classList.add("broken");
  }
}

document.addEventListener("visibilitychange", ask);
for (;;) {
  await new Promise((done) => setTimeout(done, EVERY_MS));
  await ask();
}
