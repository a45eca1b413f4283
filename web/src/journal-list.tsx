/** A list of entries of the journal, newest first, in a card with its filters. */
import type { ComponentChildren } from "preact";
import { useEffect, useId } from "preact/hooks";
import { moment } from "./format.ts";
import type { Rows } from "./pages.ts";
import { Card, Empty, ProblemNote, Waiting } from "./parts.tsx";
import { go, href, route } from "./route.ts";
import { type Column, LongTable } from "./table.tsx";
import "./journal.css";

/** A filter of the list; the query of the address keeps it. */
export interface Filter {
  name: string;
  label: string;
  placeholder?: string;
  /** What people look for; anything else can be written. */
  choices?: readonly string[];
}

interface OfEntry {
  entry: number;
  at_s: number;
}

interface Props<Row extends OfEntry> {
  /** What it is called; with a filter, and without. */
  title: string;
  filtered: string;
  /** The name of the table. */
  label: string;
  found: Rows<Row>;
  /** Columns after the entry and its moment. */
  columns: readonly Column<Row>[];
  filters: readonly Filter[];
  /** Beside the filters. */
  aside?: ComponentChildren;
  /** What is said where there is nothing, and nothing that matches. */
  none: { title: string; hint: ComponentChildren; filtered: string };
  children?: ComponentChildren;
}

function place(row: OfEntry) {
  return { view: "decisions", id: String(row.entry), entry: row.entry };
}

const FIRST: readonly Column<OfEntry>[] = [
  {
    name: "entry",
    title: "entry",
    number: true,
    width: "5rem",
    cell: (row) => (
      <a class="entry" href={href(place(row))}>
        {row.entry}
      </a>
    ),
  },
  { name: "at", less: true, title: "at", width: "8rem", cell: (row) => moment(row.at_s) },
];

/** Which filters the address holds. */
export function given(filters: readonly Filter[]): Readonly<Record<string, string | undefined>> {
  const { query } = route.value;
  return Object.fromEntries(filters.map(({ name }) => [name, query[name]]));
}

export function JournalList<Row extends OfEntry>(props: Props<Row>) {
  const { found, filters, none } = props;
  const isFiltered = Object.values(given(filters)).some((one) => one !== undefined);
  const empty = !found.loading && !found.rows.length;
  useEffect(() => {
    // A page may have none of what is looked for, and the next one some.
    if (empty && found.more) found.reach(1);
  }, [empty, found.more]);
  return (
    <Card
      title={isFiltered ? props.filtered : props.title}
      aside={
        <>
          {props.aside}
          <Filters of={filters} />
        </>
      }
    >
      {found.problem !== null && <ProblemNote of={found.problem} />}
      {empty && !found.more ? (
        <Empty title={isFiltered ? none.filtered : none.title}>
          {isFiltered ? (
            <a href={href({ query: Object.fromEntries(filters.map(({ name }) => [name, undefined])) })}>Show all</a>
          ) : (
            none.hint
          )}
        </Empty>
      ) : found.now_s === null && found.problem === null ? (
        <Waiting />
      ) : (
        <>
          <LongTable
            label={props.label}
            columns={[...FIRST, ...props.columns]}
            rows={found.rows}
            total={found.rows.length + (found.more ? 50 : 0)}
            id={(row) => String(row.entry)}
            reach={found.reach}
            open={(row) => go(place(row))}
          />
          {props.children}
        </>
      )}
    </Card>
  );
}

/** A form for what the query of the address is to hold. */
export function Filters({ of }: { of: readonly Filter[] }) {
  const values = given(of);
  const list = useId();
  return (
    <form
      class="filters"
      key={of.map(({ name }) => values[name]).join(" ")}
      onSubmit={(event) => {
        event.preventDefault();
        const form = new FormData(event.currentTarget);
        const query = of.map(({ name }) => [name, String(form.get(name) ?? "").trim()]);
        go({ query: Object.fromEntries(query) as Record<string, string> });
      }}
    >
      {of.map(({ name, label, placeholder, choices }) => (
        <label key={name}>
          {label}
          <input
            type="search"
            name={name}
            defaultValue={values[name] ?? ""}
            placeholder={placeholder}
            list={choices && `${list}-${name}`}
          />
          {choices && (
            <datalist id={`${list}-${name}`}>
              {choices.map((one) => (
                <option key={one} value={one} />
              ))}
            </datalist>
          )}
        </label>
      ))}
      <button type="submit">Show</button>
    </form>
  );
}
