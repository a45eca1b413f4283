/** A long table: only the rows that are seen are drawn, and the keyboard moves through all. */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

export interface Column<Row> {
  name: string;
  title: ComponentChildren;
  cell: (row: Row) => ComponentChildren;
  number?: boolean;
  /** A share of the width, such as "12%"; without it, what is left. */
  width?: string;
  /** What the server sorts by; without it, the column cannot be sorted. */
  sort?: string;
  /** Left out where there is room for few columns, as on a phone. */
  less?: boolean;
}

function looks<Row>(column: Column<Row>): string {
  return `${column.number ? "number" : ""}${column.less ? " less" : ""}`;
}

interface Props<Row> {
  label: string;
  columns: readonly Column<Row>[];
  /** Those that are here: the first ones, unless `at` says where each is. */
  rows: readonly Row[];
  /** The row of a number; undefined: it is not here yet. */
  at?: (number: number) => Row | undefined;
  total: number;
  id: (row: Row) => string;
  /** Called when rows up to this number should be there. */
  reach?: (count: number) => void;
  /** Called when the rows from a number to before another are looked at. */
  see?: (first: number, last: number) => void;
  open?: (row: Row) => void;
  sort?: string;
  onSort?: (sort: string) => void;
  chosen?: ReadonlySet<string>;
  onChoose?: (ids: ReadonlySet<string>) => void;
  /** Whether a row can be chosen. */
  choosable?: (row: Row) => boolean;
}

const ROW = 36;
const AHEAD = 12;
/** Rows are looked at anew each time so much was scrolled: fewer than are drawn ahead. */
const STRIDE = 6 * ROW;

export function LongTable<Row>(props: Props<Row>) {
  const { columns, rows, total, id, reach, see, chosen, onChoose } = props;
  const rowAt = props.at ?? ((number: number) => rows[number]);
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [current, setCurrent] = useState(0);
  const [moved, setMoved] = useState(false);
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const seen = new ResizeObserver(() => setHeight(element.clientHeight));
    seen.observe(element);
    return () => seen.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(top / ROW) - AHEAD);
  const last = Math.min(total, Math.ceil((top + height) / ROW) + AHEAD);
  useEffect(() => {
    if (last > rows.length && rows.length < total) reach?.(last);
  }, [last, rows.length, total]);
  useEffect(() => see?.(first, last), [first, last, total]);
  const shown: (readonly [number, Row | undefined])[] = [];
  for (let number = first; number < last; number++) shown.push([number, rowAt(number)]);
  const can = props.choosable ?? (() => true);

  function move(to: number): void {
    const next = Math.max(0, Math.min(total - 1, to));
    setCurrent(next);
    setMoved(true);
    const element = box.current;
    if (element === null) return;
    const above = next * ROW;
    if (above < element.scrollTop) element.scrollTop = above;
    const below = above + 2 * ROW - element.clientHeight;
    if (below > element.scrollTop) element.scrollTop = below;
  }

  function choose(row: Row): void {
    if (!onChoose || !can(row)) return;
    const next = new Set(chosen);
    if (!next.delete(id(row))) next.add(id(row));
    onChoose(next);
  }

  function pressed(event: KeyboardEvent): void {
    if (event.target !== box.current) return;
    const page = Math.max(1, Math.floor(height / ROW) - 2);
    const steps: Record<string, number> = {
      ArrowDown: current + 1, ArrowUp: current - 1, j: current + 1, k: current - 1,
      PageDown: current + page, PageUp: current - page, Home: 0, End: total - 1,
    };
    const to = steps[event.key];
    const row = rowAt(current);
    if (to !== undefined) move(to);
    else if (event.key === "Enter" && row !== undefined) props.open?.(row);
    else if (event.key === "x" && row !== undefined) choose(row);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  const doing = useRef<Doing<Row>>({ choose, open: () => undefined, stand: setCurrent });
  Object.assign(doing.current, { choose, open: (row: Row) => props.open?.(row) });
  const here = rowAt(current);
  const choosing = onChoose !== undefined;
  const all = useMemo(() => (choosing ? rows.filter(can) : []), [choosing, rows]);
  const everyChosen = useMemo(() => all.length > 0 && all.every((row) => chosen?.has(id(row))), [all, chosen]);
  return (
    <>
    <p class="hidden" aria-live="polite">
      {moved && here !== undefined ? `row ${current + 1} of ${total}: ${id(here)}` : ""}
    </p>
    <div
      class="long"
      ref={box}
      tabIndex={0}
      role="region"
      aria-label={`${props.label}: arrows move, Enter opens${onChoose ? ", x chooses" : ""}`}
      onScroll={(event) => setTop(Math.floor(event.currentTarget.scrollTop / STRIDE) * STRIDE)}
      onKeyDown={pressed}
    >
      <table aria-rowcount={total + 1} aria-label={props.label}>
        <thead>
          <tr aria-rowindex={1}>
            {onChoose && (
              <th style={{ width: "2.4rem" }}>
                <input
                  type="checkbox"
                  aria-label="Choose all rows that are loaded"
                  checked={everyChosen}
                  onChange={(event) =>
                    onChoose(new Set(event.currentTarget.checked ? all.map(id) : []))
                  }
                />
              </th>
            )}
            {columns.map((column) => (
              <Heading key={column.name} column={column} sort={props.sort} onSort={props.onSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          {first > 0 && <Gap rows={first} />}
          {shown.map(([number, row]) =>
            row === undefined ? (
              <Gap key={`gap ${number}`} rows={1} />
            ) : (
              <Row
                key={id(row)}
                row={row}
                name={id(row)}
                number={number}
                columns={columns}
                chosen={onChoose === undefined ? null : (chosen?.has(id(row)) ?? false)}
                can={can(row)}
                current={number === current}
                doing={doing.current}
              />
            ),
          )}
          {total > last && <Gap rows={total - last} />}
        </tbody>
      </table>
    </div>
    </>
  );
}

/** What a row can do; the same object for all rows and renderings. */
interface Doing<Row> {
  choose: (row: Row) => void;
  open: (row: Row) => void;
  stand: (number: number) => void;
}

/** A row; drawn anew only if something of it is other than it was. */
function Row<Row>(props: {
  row: Row;
  name: string;
  number: number;
  columns: readonly Column<Row>[];
  /** Null: rows are not chosen here. */
  chosen: boolean | null;
  can: boolean;
  current: boolean;
  doing: Doing<Row>;
}) {
  const { row, name, number, columns, chosen, can, current, doing } = props;
  return useMemo(
    () => (
      <tr
        aria-rowindex={number + 2}
        class={`${chosen ? "chosen " : ""}${current ? "current" : ""}`}
        onClick={() => doing.stand(number)}
        onDblClick={() => doing.open(row)}
      >
        {chosen !== null && (
          <td>
            {can && (
              <input
                type="checkbox"
                aria-label={`Choose ${name}`}
                checked={chosen}
                onChange={() => doing.choose(row)}
              />
            )}
          </td>
        )}
        {columns.map((column) => (
          <td key={column.name} class={looks(column)}>
            {column.cell(row)}
          </td>
        ))}
      </tr>
    ),
    [row, number, columns, chosen, can, current],
  );
}

/** The room of rows that are not drawn; a cell over all columns would bring back those that a phone hides. */
function Gap({ rows }: { rows: number }) {
  return (
    <tr class="gap" aria-hidden="true">
      <td style={{ height: `${rows * ROW}px` }} />
    </tr>
  );
}

function Heading<Row>(props: {
  column: Column<Row>;
  sort: string | undefined;
  onSort: ((sort: string) => void) | undefined;
}) {
  const { column, sort, onSort } = props;
  const by = column.sort;
  const order = sort === by ? "ascending" : sort === `-${by}` ? "descending" : "none";
  const style = column.width === undefined ? {} : { "--width": column.width };
  if (by === undefined || onSort === undefined) {
    return (
      <th class={looks(column)} style={style} scope="col">
        {column.title}
      </th>
    );
  }
  return (
    <th class={looks(column)} style={style} scope="col" aria-sort={order}>
      <button type="button" onClick={() => onSort(order === "ascending" ? `-${by}` : by)}>
        {column.title}
      </button>
    </th>
  );
}
