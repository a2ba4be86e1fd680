/** Tables that sort by a column; the order is a word: `time` rises, `-time` falls. */

export interface Column<T> {
  readonly key: string;
  readonly name: string;
  readonly of: (row: T) => number | string | null;
  readonly text?: boolean;
}

export function sorted<T>(rows: readonly T[], columns: readonly Column<T>[], sort: string): readonly T[] {
  const falling = sort.startsWith("-");
  const column = columns.find(({ key }) => key === (falling ? sort.slice(1) : sort));
  if (!column) return rows;
  const sign = falling ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [column.of(a), column.of(b)];
    // what is unknown comes last in both directions
    if (x === null || y === null) return x === y ? 0 : x === null ? 1 : -1;
    return sign * (typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y)) : x - y);
  });
}

export function SortHeader<T>({ column, sort, onSort }: { column: Column<T>; sort: string; onSort: (sort: string) => void }) {
  const active = sort.replace(/^-/, "") === column.key;
  const falling = sort.startsWith("-");
  const next = active ? (falling ? column.key : `-${column.key}`) : column.text ? column.key : `-${column.key}`;
  return (
    <th scope="col" className={column.text ? "text" : undefined} aria-sort={active ? (falling ? "descending" : "ascending") : undefined}>
      <button type="button" onClick={() => onSort(next)}>
        {column.name}
        {active && <span aria-hidden="true">{falling ? " ↓" : " ↑"}</span>}
      </button>
    </th>
  );
}
