// The connection to the server: one stream of updates for the page, read by fetch rather than EventSource, which tells
// neither the status nor the text of an error.

const SILENT_MS = 5000; // updates come once a second: without a byte for so long, the stream is lost
const FIRST_WAIT_MS = 500;
const LAST_WAIT_MS = 15000;
const EVENT_CHARS_MAX = 8 << 20; // one update; more is no update of ours

/** get asks the API. It throws a Refused where the server answers with an error. */
export async function get(path, signal) {
  const answer = await fetch(path, { signal, cache: "no-store", credentials: "same-origin" });
  if (answer.ok) return answer;
  let said = "";
  try {
    said = (await answer.text()).slice(0, 2000);
    said = JSON.parse(said).error || said;
  } catch {
    // not JSON: what it said is shown as it is
  }
  throw new Refused(answer.status, String(said).trim() || answer.statusText);
}

/**
 * login shows the token to the server, which answers with a cookie that no script can read. It returns what was wrong, or "".
 */
export async function login(token) {
  try {
    const answer = await fetch("login", { method: "POST", body: new URLSearchParams({ token }), credentials: "same-origin" });
    if (answer.ok) return "";
    return answer.status === 403 ? "That is not the token." : `The server refuses: ${answer.status} ${answer.statusText}`;
  } catch {
    return "The server cannot be reached.";
  }
}

/** Refused is an answer of the server that is an error. */
export class Refused extends Error {
  constructor(status, said) {
    super(said);
    this.status = status;
  }
}

/**
 * Stream keeps one connection to api/v1/stream, and opens it again, waiting longer each time, for as long as the page is
 * open. onUpdate gets each update; onState gets {state, since, why, status, retryAt}: state is "connecting", "live",
 * "lost" or "token" (the server wants one; nothing is tried until start is called again).
 */
export class Stream {
  constructor({ onUpdate, onState }) {
    this.onUpdate = onUpdate;
    this.onState = onState;
    this.heardAt = 0; // Date.now() of the last update
    this.turn = 0; // of the loop: a new one ends the one before
    this.wake = null;
  }

  start() {
    const turn = ++this.turn;
    this.abort?.abort();
    this.wake?.();
    this.run(turn);
  }

  /** retry ends a pause between attempts. */
  retry() {
    this.wake?.();
  }

  async run(turn) {
    let wait = FIRST_WAIT_MS;
    if (!this.heardAt) this.onState({ state: "connecting" });
    while (turn === this.turn) {
      let why = "the server ended the stream";
      let status = 0;
      try {
        await this.read(() => {
          wait = FIRST_WAIT_MS;
        });
      } catch (err) {
        if (turn !== this.turn) return;
        if (err instanceof Refused) {
          status = err.status;
          why = err.message;
          if (status === 401) return this.onState({ state: "token", why });
        } else why = this.silent ? `nothing heard for ${SILENT_MS / 1000} s` : "the server cannot be reached";
      }
      if (turn !== this.turn) return;
      const pause = wait * (0.75 + Math.random() / 2); // so that many pages do not come back at one moment
      this.onState({ state: "lost", since: this.heardAt, why, status, retryAt: Date.now() + pause });
      wait = Math.min(wait * 2, LAST_WAIT_MS);
      await this.pause(pause);
    }
  }

  pause(ms) {
    return new Promise((done) => {
      const timer = setTimeout(done, ms);
      this.wake = () => {
        clearTimeout(timer);
        done();
      };
    });
  }

  async read(heard) {
    this.abort = new AbortController();
    this.silent = false;
    let timer = 0;
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        this.silent = true;
        this.abort.abort();
      }, SILENT_MS);
    };
    watch();
    try {
      const answer = await get("api/v1/stream", this.abort.signal);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ; ) {
        const { value, done } = await reader.read();
        if (done) return;
        watch();
        rest = this.take(rest + value, heard);
        if (rest.length > EVENT_CHARS_MAX) throw new Error("an update is too large");
      }
    } finally {
      clearTimeout(timer);
      this.abort.abort();
    }
  }

  /** take handles the whole events of the text, and returns what is left. */
  take(buffered, heard) {
    const events = buffered.split(/\r?\n\r?\n/);
    const rest = events.pop();
    for (const event of events) {
      let name = "message";
      const data = [];
      for (const line of event.split(/\r?\n/)) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      }
      if (name !== "update" || !data.length) continue;
      const update = JSON.parse(data.join("\n"));
      this.heardAt = Date.now();
      heard();
      this.onState({ state: "live" });
      this.onUpdate(update);
    }
    return rest;
  }
}
