import type { Grade } from "../../api/types";

/** The colour of each grade; which error has which grade is the server's to say. */
const TAGS: Readonly<Record<Grade, "good" | "warn" | "bad">> = { good: "good", fair: "warn", poor: "bad" };

export function gradeTag(grade: Grade): "good" | "warn" | "bad" {
  return TAGS[grade];
}
