/** Server-sent events over `fetch`, which can carry a token and be aborted, as `EventSource` cannot. */

import { send, type Options } from "./client";

export interface Event {
  readonly type: string;
  readonly data: string;
}

/** Takes text in pieces of any length and gives whole events. */
export class EventReader {
  private rest = "";
  private type = "";
  private lines: string[] = [];

  push(text: string): Event[] {
    const events: Event[] = [];
    const parts = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = parts.pop() ?? "";
    for (const line of parts) {
      if (line === "") {
        if (this.lines.length > 0) events.push({ type: this.type || "message", data: this.lines.join("\n") });
        this.type = "";
        this.lines = [];
      } else if (!line.startsWith(":")) {
        const colon = line.indexOf(":");
        const field = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "event") this.type = value;
        else if (field === "data") this.lines.push(value);
      }
    }
    return events;
  }
}

export async function* events(path: string, options: Options = {}): AsyncGenerator<Event> {
  const response = await send(path, options);
  const body = response.body;
  if (!body) return;
  const pieces = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, BufferSource>).getReader();
  const reader = new EventReader();
  try {
    for (;;) {
      const { done, value } = await pieces.read();
      if (done) return;
      yield* reader.push(value);
    }
  } finally {
    await pieces.cancel().catch(() => undefined);
  }
}
