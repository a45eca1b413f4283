/** Health: is what is shown true and new? Cells, the index, leaders, agents, and the proof. */
import type { Schemas } from "../api.ts";
import { useData } from "../data.ts";
import { bytes, capital, count, duration, moment, percent, plural } from "../format.ts";
import { Agents } from "../health/agents.tsx";
import { head } from "../live.ts";
import { Card, DecisionLink, Figures, Loaded, Name, Table, type Figure } from "../parts.tsx";
import { useProof } from "../proof.ts";
import { href } from "../route.ts";
import "../health/health.css";

export function Health() {
  return (
    <div class="stack">
      <Gateway />
      <div class="columns">
        <Verified />
        <Leaders />
      </div>
      <Agents />
    </div>
  );
}

const STATUS: Readonly<Record<string, string>> = {
  ok: "reading",
  starting: "starting",
  unreadable: "cannot read",
};

function Gateway() {
  const health = useData("/api/v1/health", {}, { timeless: true, again: head.value?.entry, apartMs: 2000 });
  const cells = useData("/api/v1/cells", {}, { timeless: true, again: head.value?.entry, apartMs: 2000 });
  return (
    <Loaded of={health}>
      {(found) => {
        const rows: Figure[] = [
          {
            label: "the gateway",
            value: STATUS[found.status] ?? found.status,
            tone: found.status === "ok" ? "good" : "bad",
          },
          { label: "version", value: found.version },
          { label: "cells", value: count(found.cells.length) },
          { label: "pages that follow", value: count(found.streams) },
          { label: "past states kept", value: bytes(found.past_bytes) },
        ];
        return (
          <div class="stack">
            {found.problem !== null && <p class="problem">{found.problem}</p>}
            <Figures of={rows} />
            <Cells health={found.cells} cells={cells.data?.cells ?? []} log={found.log} />
          </div>
        );
      }}
    </Loaded>
  );
}

interface CellsOf {
  health: readonly Schemas["CellHealth"][];
  cells: readonly Schemas["CellRow"][];
  log: string;
}

function Cells({ health, cells, log }: CellsOf) {
  return (
    <Card title="Cells of this log" aside={<Name of={log} wide />}>
      <Table
        label="Cells"
        head={["cell", "leader", "policy", "#newest entry", "its time", "index of the past", "problem"]}
      >
        {health.map((row) => {
          const cell = cells.find((one) => one.cell === row.cell);
          return (
            <tr key={row.cell}>
              <th scope="row">
                <a href={href({ view: "tide", cell: row.cell, entry: null })}>
                  <Name of={row.cell} />
                </a>
              </th>
              <td>
                <Name of={cell?.leader ?? "–"} />
                {cell?.nobody_leads != null && <p class="bad-text">{capital(cell.nobody_leads)}.</p>}
                {cell?.leader_epoch != null && <span class="quiet"> epoch {cell.leader_epoch}</span>}
              </td>
              <td><Name of={cell?.policy ?? "–"} /></td>
              <td class="number">{row.entry ?? "–"}</td>
              <td>{moment(row.now_s)}</td>
              <td><Index of={row.index} /></td>
              <td>
                {row.problem === null && row.index.notice === null ? (
                  <span class="nil">none</span>
                ) : (
                  <span class="bad-text">{row.problem ?? row.index.notice}</span>
                )}
              </td>
            </tr>
          );
        })}
      </Table>
    </Card>
  );
}

function Index({ of }: { of: Schemas["IndexHealth"] }) {
  if (of.building) return <>being built, {percent(of.done)}</>;
  return (
    <>
      {plural(of.entries, "entry", "entries")} <span class="quiet">{bytes(of.bytes)}</span>
    </>
  );
}

type VerifiedAnswer = Schemas["VerifiedAnswer"];

function Verified() {
  const found = useProof();
  return (
    <Card title="Decided again from the start">
      <p class="quiet">
        The gateway decides each entry again, as <code>tidegate replay</code> does, and compares byte
        for byte.
      </p>
      <Loaded of={found}>{(proof) => <Proof of={proof} />}</Loaded>
    </Card>
  );
}

function Proof({ of }: { of: VerifiedAnswer }) {
  const share = of.of ? of.entries / of.of : 0;
  return (
    <>
      <p class={`proof proof-${of.state}`} role="status">
        {PROOF[of.state]}
      </p>
      <p>
        <progress value={share} max={1} aria-label="Entries decided again" /> {count(of.entries)} of{" "}
        {plural(of.of, "entry", "entries")}
      </p>
      {of.first_difference !== null && <p class="problem">{of.first_difference}</p>}
      {of.problem !== null && <p class="problem">{of.problem}</p>}
    </>
  );
}

const PROOF: Readonly<Record<VerifiedAnswer["state"], string>> = {
  none: "It begins now.",
  running: "Identical so far.",
  identical: "Identical on replay.",
  differs: "It differs: the log was changed, or this release decides otherwise.",
  failed: "It could not go on.",
};

function Leaders() {
  const found = useData("/api/v1/leaders", { limit: 20 }, { apartMs: 5000 });
  return (
    <Card title="Who led">
      <Loaded of={found}>
        {(page) => (
          <ol class="leaders">
            {page.leaders.map((row, place) => {
              const later = page.leaders[place - 1];
              const until_s = later?.at_s ?? page.now_s;
              return (
                <li key={row.entry}>
                  <span class="leader-mark" aria-hidden="true" data-another={String(row.another)} />
                  <span>
                    <strong><Name of={row.leader} /></strong>{" "}
                    <span class="quiet">
                      epoch {row.leader_epoch} · <Name of={row.policy} /> · {duration(until_s - row.at_s)}
                      {place === 0 ? " so far" : ""}
                    </span>
                  </span>
                  <DecisionLink entry={row.entry} at_s={row.at_s} />
                </li>
              );
            })}
            {page.next !== null && <li class="quiet">and earlier ones</li>}
          </ol>
        )}
      </Loaded>
    </Card>
  );
}

