import { describe, expect, it } from "vitest";
import { EventReader } from "../src/api/eventReader";
import { Latest } from "../src/api/latest";

describe("events", () => {
  it("are whole, however the text is cut", () => {
    const text = 'event: measurement\r\ndata: {"a":1}\r\n\r\n: still here\n\ndata: one\ndata: two\n\n';
    for (let cut = 0; cut < text.length; cut += 1) {
      const reader = new EventReader();
      const events = [...reader.push(text.slice(0, cut)), ...reader.push(text.slice(cut))];
      expect(events, `cut at ${cut}`).toEqual([{ type: "measurement", data: '{"a":1}' }, { type: "message", data: "one\ntwo" }]);
    }
  });
});

describe("the newest question", () => {
  const setup = (patience = 100) => {
    const asked: { question: number; signal: AbortSignal; answer: (value: string) => void }[] = [];
    const settled: string[] = [];
    let now = 0;
    const latest = new Latest<number, string>(
      (question, signal) =>
        new Promise((resolve, reject) => {
          asked.push({ question, signal, answer: resolve });
          signal.addEventListener("abort", () => reject(new DOMException("gone", "AbortError")));
        }),
      (question, answer) => settled.push(`${question}=${answer ?? "error"}`),
      patience,
      () => now,
    );
    return { asked, settled, latest, later: (time: number) => (now += time) };
  };
  const rest = () => new Promise((resolve) => setTimeout(resolve, 0));

  it("is asked next, those between never", async () => {
    const { asked, settled, latest } = setup();
    for (const question of [1, 2, 3, 4]) latest.ask(question);
    expect(asked.map(({ question }) => question)).toEqual([1]);
    asked[0]!.answer("a");
    await rest();
    expect(asked.map(({ question }) => question)).toEqual([1, 4]);
    asked[1]!.answer("b");
    await rest();
    expect(settled).toEqual(["1=a", "4=b"]);
    expect(latest.busy).toBe(false);
  });

  it("ends one that takes too long", async () => {
    const { asked, settled, latest, later } = setup();
    latest.ask(1);
    later(101);
    latest.ask(2);
    await rest();
    expect(asked[0]!.signal.aborted).toBe(true);
    asked[1]!.answer("b");
    await rest();
    expect(settled).toEqual(["2=b"]);
  });
});
