// The server's routes: what programs use, with the key that the page was given.

const KEY = "rlhf-key";
const { root } = document.body.dataset;

export class Refused extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const key = () => sessionStorage.getItem(KEY) ?? "";
export const useKey = (text) => sessionStorage.setItem(KEY, text);
export const dropKey = () => sessionStorage.removeItem(KEY);

/** Hexadecimal digits; randomUUID is not there on a page without https. */
export function randomHex(bytes) {
  return [...crypto.getRandomValues(new Uint8Array(bytes))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function ask(path, body, signal) {
  const headers = key() ? { Authorization: `Bearer ${key()}` } : {};
  const how = { headers, signal };
  if (body !== undefined) {
    how.method = "POST";
    how.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(`${root}${path}`, how);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer.");
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => null);
    const message = said?.error?.message ?? `The server answered with status ${answer.status}.`;
    throw new Refused(answer.status, message, said?.error?.code);
  }
  return answer;
}

export const models = async () => (await (await ask("/v1/models")).json()).data;
export const status = async () => (await ask("/v1/status")).json();
export const sendFeedback = async (event) => (await ask("/v1/feedback", event)).json();

/** Ask for a completion; `grow` is called with the whole text so far. Gives {id, model, text, reason}. */
export async function complete(body, grow, signal) {
  const answer = await ask("/v1/chat/completions", { ...body, stream: true }, signal);
  const done = { id: "", model: "", text: "", reason: null };
  for await (const message of messages(answer.body)) {
    if (message.error) throw new Refused(500, message.error.message);
    done.id = message.id;
    done.model = message.model;
    const [choice] = message.choices;
    if (!choice) continue;
    done.reason = choice.finish_reason ?? done.reason;
    if (choice.delta.content) {
      done.text += choice.delta.content;
      grow(done.text);
    }
  }
  if (done.reason === null) throw new Refused(0, "The answer ended before it was complete.");
  return done;
}

/** Server-sent events, each the JSON of one `data:` line. */
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice("data: ".length));
    }
  }
}
