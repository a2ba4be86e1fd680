/**
 * Measurements made elsewhere, as people have them: CSV with a header, JSON in a handful of forms, lines of JSON. What cannot be read is named,
 * the rest is kept; the server decides what it means.
 */

export interface Row {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly precision: string;
  readonly time_us: number;
}

export interface Imported {
  readonly rows: readonly Row[];
  readonly errors: readonly string[];
}

type Loose = Readonly<Record<string, unknown>>;

const MOST = 5000;

export function readMeasurements(text: string): Imported {
  const trimmed = text.trim().replace(/^\uFEFF/, "");
  if (trimmed === "") return { rows: [], errors: ["nothing was given"] };
  let found: readonly { readonly name: string; readonly fields: Loose }[];
  if (/^[[{]/.test(trimmed)) {
    const parsed = readJson(trimmed);
    if (typeof parsed === "string") return { rows: [], errors: [parsed] };
    found = parsed.map((fields, index) => ({ name: `Point ${index + 1}`, fields }));
  } else {
    const parsed = readCsv(trimmed);
    if (typeof parsed === "string") return { rows: [], errors: [parsed] };
    found = parsed;
  }
  if (found.length > MOST) return { rows: [], errors: [`${found.length} points are too many; ${MOST} at a time`] };
  const rows: Row[] = [];
  const errors: string[] = [];
  for (const { name, fields } of found) {
    const row = readRow(fields);
    if (typeof row === "string") errors.push(`${name}: ${row}`);
    else rows.push(row);
  }
  return { rows, errors };
}

/** Lists under the names that tools give them, or a list alone, or lines. */
function readJson(text: string): readonly Loose[] | string {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    const lines = text.split("\n").filter((line) => line.trim() !== "");
    try {
      if (lines.length > 1) return lines.map((line) => JSON.parse(line) as unknown).filter((line): line is Loose => isRecord(line) && ("time_us" in line || "measured_time_us" in line || "time" in line));
    } catch {
      // neither one value nor lines of them
    }
    return `Invalid JSON: ${(error as Error).message}`;
  }
  if (Array.isArray(value)) return value.map((entry) => (isRecord(entry) ? entry : {}));
  if (!isRecord(value)) return "Invalid JSON: a list or an object is expected";
  for (const key of ["benchmarks", "measurements", "comparisons", "points", "simplified", "results"]) {
    const list = value[key];
    if (Array.isArray(list) && list.length > 0) return list.map((entry) => (isRecord(entry) ? entry : {}));
  }
  return "Invalid JSON: no list under `benchmarks`, `measurements`, `points` or `simplified`";
}

function readCsv(text: string): readonly { name: string; fields: Loose }[] | string {
  const lines = text.split(/\r?\n/);
  const separator = (lines[0] ?? "").includes(";") ? ";" : (lines[0] ?? "").includes("\t") ? "\t" : ",";
  const header = cells(lines[0] ?? "", separator).map((name) => name.trim().toLowerCase());
  const shaped = header.includes("shape") || (header.includes("n") && header.includes("k"));
  if (!shaped || !header.includes("precision") || !header.some((name) => name in TIMES)) return "the first line must name the columns: m, n, k, precision, time_us";
  return lines
    .map((line, index) => ({ line, number: index + 1 }))
    .slice(1)
    .filter(({ line }) => line.trim() !== "" && !line.startsWith("#"))
    .map(({ line, number }) => {
      const values = cells(line, separator);
      return { name: `Line ${number}`, fields: Object.fromEntries(header.map((name, index) => [name, values[index]?.trim()])) };
    });
}

/** One line of CSV; quotes hold separators and double themselves. */
function cells(line: string, separator: string): string[] {
  const found: string[] = [];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < line.length; at += 1) {
    const letter = line[at];
    if (quoted) {
      if (letter === '"' && line[at + 1] === '"') {
        cell += '"';
        at += 1;
      } else if (letter === '"') quoted = false;
      else cell += letter;
    } else if (letter === '"') quoted = true;
    else if (letter === separator) {
      found.push(cell);
      cell = "";
    } else cell += letter;
  }
  return [...found, cell];
}

/** Names of times, and how many microseconds one of them is. */
const TIMES: Readonly<Record<string, number>> = { time_us: 1, measured_time_us: 1, time_ms: 1e3, time_s: 1e6 };

function readRow(given: Loose): Row | string {
  const fields = Object.fromEntries(Object.entries(given).map(([key, value]) => [key.toLowerCase(), value])) as Loose;
  const sides = readSides(fields);
  if (typeof sides === "string") return sides;
  const precision = fields["precision"];
  if (typeof precision !== "string" || precision.trim() === "") return "no precision";
  const unit = Object.keys(TIMES).find((name) => fields[name] !== undefined && fields[name] !== "");
  if (!unit) return "no time_us";
  const time = Number(fields[unit]) * TIMES[unit]!;
  if (!(time > 0) || !Number.isFinite(time)) return `the time is ${String(fields[unit])}, not a positive number`;
  return { ...sides, precision: precision.trim(), time_us: time };
}

function readSides(fields: Loose): { m: number; n: number; k: number } | string {
  const linear = isRecord(fields["op"]) ? fields["op"]["linear"] : undefined;
  if (isRecord(linear)) return sides([linear["m"], linear["n"], linear["k"]]);
  const shape = fields["shape"];
  if (Array.isArray(shape)) return sides(shape.length === 2 ? [1, ...shape] : shape);
  if (typeof shape === "string") {
    const parts = shape.replace(/^\D+/, "").split(/\s*[x×*,]\s*/i);
    return sides(parts.length === 2 ? [1, ...parts] : parts);
  }
  if (fields["n"] === undefined || fields["k"] === undefined) return "no shape: n and k are missing";
  const m = fields["m"];
  return sides([m === undefined || m === "" ? 1 : m, fields["n"], fields["k"]]);
}

function sides(values: readonly unknown[]): { m: number; n: number; k: number } | string {
  const numbers = values.map((value) => (value === "" || value === null ? NaN : Number(value)));
  const [m, n, k] = numbers;
  if (values.length !== 3 || !numbers.every((side) => Number.isInteger(side) && side > 0)) return `the shape is ${values.map(String).join(" x ")}, not three positive whole numbers`;
  return { m: m!, n: n!, k: k! };
}

function isRecord(value: unknown): value is Loose {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
