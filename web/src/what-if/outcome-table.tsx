/** What came of it, side by side: the record, the control, the branch, and what differs. */
import { clock } from "../format.ts";
import { Table } from "../parts.tsx";
import type { Outcome, Part, Ranges, Result } from "./branches.ts";
import { ROWS, isWithinError, signed, value } from "./words.ts";

export function OutcomeTable({ of }: { of: Result }) {
  const partly = of.recorded !== null && of.recorded_until_s < of.until_s;
  return (
    <>
      <Table
        label="Outcomes"
        class="outcome"
        head={[
          `until ${clock(of.until_s, false)}`,
          of.recorded !== null && `#as it was${partly ? `, until ${clock(of.recorded_until_s, false)}` : ""}`,
          "#control",
          of.branch !== null && "#branch",
          of.branch !== null && "#differs by",
        ]}
      >
        {ROWS.map(({ part, said, better }) => (
          <tr key={part}>
            <th scope="row">{said}</th>
            {of.recorded !== null && <td class="number">{value(of.recorded[part])}</td>}
            <Cell of={of.control} part={part} ranges={of.ranges?.control} />
            {of.branch !== null && <Cell of={of.branch} part={part} ranges={of.ranges?.branch} />}
            {of.branch !== null && <Difference of={of} part={part} better={better} />}
          </tr>
        ))}
      </Table>
      {of.ranges !== null && (
        <p class="quiet small">In parentheses: the least and the most of {of.runs} runs, where they differ.</p>
      )}
    </>
  );
}

function Cell({ of, part, ranges }: { of: Outcome; part: Part; ranges: Ranges | undefined }) {
  return (
    <td class="number">
      {value(of[part])}
      <Range of={ranges?.[part]} />
    </td>
  );
}

function Range({ of, sign }: { of: readonly [number, number] | null | undefined; sign?: boolean }) {
  if (of === null || of === undefined || of[0] === of[1]) return null;
  const told = sign ? signed : value;
  return (
    <small class="range">
      {" "}
      ({told(of[0])} to {told(of[1])})
    </small>
  );
}

interface DifferenceOf {
  of: Result;
  part: Part;
  better: "more" | "less" | null;
}

/** A difference with its judgement as a word, for its colour alone would not be read by all. */
function Difference({ of, part, better }: DifferenceOf) {
  const [plain, changed] = [of.control[part], of.branch?.[part] ?? null];
  if (plain === null || changed === null) return <td class="number nil">–</td>;
  const by = changed - plain;
  const range = of.ranges?.difference?.[part];
  const within = isWithinError(of, part);
  if (Math.abs(by) < 0.005) {
    return (
      <td class="number nil">
        0<Range of={range} sign />
      </td>
    );
  }
  const good = better === null ? null : by > 0 === (better === "more");
  const tone = within || good === null ? "" : good ? "good-text" : "bad-text";
  const word = within ? "within the error" : good === null ? "" : good ? "better" : "worse";
  return (
    <td class={`number ${tone}`}>
      {signed(by)}
      <Range of={range} sign />
      {word !== "" && <small class="judged"> {word}</small>}
    </td>
  );
}
