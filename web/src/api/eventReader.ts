/** Server-sent events out of text that comes in pieces. */

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
