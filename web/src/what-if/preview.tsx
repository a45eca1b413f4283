/** What a request moves: when nodes are free, which gangs fare otherwise, which deadlines are missed. */
import type { Schemas } from "../api.ts";
import { clock, duration, plural } from "../format.ts";
import { Card, Name } from "../parts.tsx";

type Preview = Schemas["Preview"];
type Move = Schemas["Move"];

const DOES: Readonly<Record<Move["does"], string>> = {
  saves_and_leaves: "saves its work and leaves its GPUs",
  stops: "stops, without a save",
  changes: "goes on with other GPUs",
  starts: "starts at another time, or elsewhere",
  stays: "does not do what it does otherwise",
};
/** So many gangs are named; the others are counted. */
const SHOWN = 40;

export function PreviewCard({ of }: { of: Preview }) {
  const own = of.moves.filter((move) => move.is_subject).length;
  return (
    <Card title="What it moves" aside={<span>{plural(of.moves.length, "gang")}, {own} of them its own</span>}>
      <ul class="deeds">
        {of.nodes.map((node) => (
          <li key={node.node}>
            <Name of={node.node} />{" "}
            {node.free_s === null
              ? `is not free within this time; it is to be by ${clock(node.by_s)}`
              : `is free after ${duration(node.free_s - of.at_s)}, at ${clock(node.free_s)}`}
          </li>
        ))}
        {of.moves.slice(0, SHOWN).map((move) => (
          <li key={move.job}>
            <span class="entry">{clock(move.at_s)}</span> <Name of={move.job} /> {DOES[move.does]}
            {move.again_s !== null && move.does !== "starts" && `; it has GPUs after ${duration(move.again_s - move.at_s)}`}
          </li>
        ))}
        {of.moves.length === 0 && <li>No gang fares otherwise.</li>}
      </ul>
      {of.moves.length > SHOWN && <p class="quiet">And {of.moves.length - SHOWN} more.</p>}
      <Deadlines of={of} />
    </Card>
  );
}

function Deadlines({ of }: { of: Preview }) {
  if (of.missed.length === 0) return <p>No deadline is missed for it.</p>;
  return (
    <p class="problem">
      Deadlines missed for it: {of.missed.map((one, at) => [at > 0 && ", ", <Name key={one.job} of={one.job} />])}
    </p>
  );
}
