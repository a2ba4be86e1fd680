/** How far apart prediction and measurement are, as a colour and a word. */
export function errorTag(percent: number): "good" | "warn" | "bad" {
  if (percent <= 15) return "good";
  return percent <= 40 ? "warn" : "bad";
}
