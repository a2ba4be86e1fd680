/** Comma-separated values, quoted where they have to be. */

export type Cell = string | number | boolean | null | undefined;

export function toCsv(header: readonly string[], rows: readonly (readonly Cell[])[]): string {
  return [header, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

function quoted(cell: Cell): string {
  const text = cell === null || cell === undefined ? "" : String(cell);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
