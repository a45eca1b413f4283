/** Branches that were run before. */
import { count, percent } from "../format.ts";
import { Card, Empty, Name, ProblemNote, State, Table } from "../parts.tsx";
import { href } from "../route.ts";
import { type Branch, end, isOpen, useBranches } from "./branches.ts";
import { changeInWords } from "./words.ts";

export function Branches() {
  const { data, problem, again } = useBranches();
  const rows = data?.branches ?? [];
  return (
    <Card title="Branches run before">
      {problem !== null && <ProblemNote of={problem} />}
      {data !== null && !rows.length ? (
        <Empty title="None yet.">They are kept until the gateway ends; a saved one is a log of its own.</Empty>
      ) : (
        <Table
          label="Table of branches"
          head={["what is changed", "#from entry", "#hours", "#runs", "asked by", "state", <span class="hidden">end or forget</span>]}
        >
          {rows.map((one) => <Row key={one.branch} of={one} again={again} />)}
        </Table>
      )}
    </Card>
  );
}

function Row({ of, again }: { of: Branch; again: () => void }) {
  const parts = changeInWords(of.asked.change);
  return (
    <tr>
      <th scope="row" class="wraps">
        <a href={href({ view: "what-if", id: of.branch })}>
          <bdi class="text">{parts.length ? parts.join(" · ") : "nothing: the control alone"}</bdi>
        </a>
      </th>
      <td class="number">{of.asked.entry ?? "newest"}</td>
      <td class="number">{of.asked.hours}</td>
      <td class="number">{count(of.asked.runs)}</td>
      <td><Name of={of.asked_by} /></td>
      <td>
        <State of={of.state} /> {of.state === "running" && percent(of.done)}
      </td>
      <td>
        <button type="button" class="plain" onClick={() => void end(of.branch).then(again, again)}>
          {isOpen(of) ? "End" : "Forget"}
        </button>
      </td>
    </tr>
  );
}
