import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { gradeTag } from "../src/views/compare/errors";

describe("grades", () => {
  it("has a colour for each word of the server", () => {
    expect((["good", "fair", "poor"] as const).map(gradeTag)).toEqual(["good", "warn", "bad"]);
  });

  it("judges no error itself: which error is good is the server's to say", () => {
    const files = (folder: string): string[] =>
      readdirSync(folder, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? files(join(folder, entry.name)) : [join(folder, entry.name)]));
    const judging = files("src").filter((file) => /error_pct\s*[<>]=?/.test(readFileSync(file, "utf8")));
    expect(judging).toEqual([]);
  });
});
