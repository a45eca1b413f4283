/** What is to be tried: from which entry, with which change, for how long. */
import { useId, useState } from "preact/hooks";
import { Problem } from "../api.ts";
import { useData } from "../data.ts";
import { Card, Name, Part } from "../parts.tsx";
import { go, route } from "../route.ts";
import { PolicyField } from "../rules/policy-field.tsx";
import { begin } from "./branches.ts";
import { type Given, Wrong, askedOf, givenOf } from "./given.ts";
import { Presets } from "./presets.tsx";
import { requestInWords } from "./words.ts";

export function Form() {
  const { query, entry, cell } = route.value;
  const job = query["job"];
  const [given, setGiven] = useState<Given>(() => givenOf(query, entry));
  const [wrong, setWrong] = useState<{ field: string; text: string } | null>(null);
  const [busy, setBusy] = useState(false);
  const overview = useData("/api/v1/overview");
  const training = (overview.data?.pools ?? [])
    .filter((pool) => pool.kind === "training")
    .map((pool) => pool.pool);
  const set = (part: Partial<Given>): void => setGiven((was) => ({ ...was, ...part }));

  async function run(event: Event): Promise<void> {
    event.preventDefault();
    setWrong(null);
    setBusy(true);
    try {
      const branch = await begin(cell, askedOf(given));
      go({ view: "what-if", id: branch.branch, query: { job } });
    } catch (error) {
      setWrong(wrongOf(error));
    } finally {
      setBusy(false);
    }
  }
  const text = (name: TextField) => ({
    value: given[name],
    onInput: (event: { currentTarget: { value: string } }) => set({ [name]: event.currentTarget.value }),
    ...(wrong?.field === name ? { "aria-invalid": "true" as const } : {}),
  });
  return (
    <Card title="What if…">
      {job !== undefined && (
        <Presets job={job} entry={given.entry} pools={training} choose={set} />
      )}
      <form class="what-if in-parts" onSubmit={(event) => void run(event)}>
        <Part title="From">
          <label>
            after entry
            <input type="text" inputMode="numeric" placeholder="the newest" {...text("entry")} />
          </label>
          <label>
            for hours
            <input type="number" min="0.1" max="168" step="any" {...text("hours")} />
          </label>
          <label>
            runs
            <input type="number" min="1" max="20" step="1" {...text("runs")} />
          </label>
          <p class="quiet small">
            All runs but the first draw what nobody has measured: then figures are ranges.
          </p>
        </Part>
        <Part title="Decide otherwise">
          <PolicyField value={given.policy} onInput={(policy) => set({ policy })} label="policy, with options" isWrong={wrong?.field === "policy"} />
          <label class="wide">
            settings of the engine
            <input type="text" placeholder="cycle_s=30" spellcheck={false} {...text("settings")} />
          </label>
        </Part>
        <Part title="Other nodes">
          {(overview.data?.pools ?? []).map((pool) => (
            <label key={pool.pool}>
              <span>
                more in <Name of={pool.pool} />
              </span>
              <input
                type="number"
                min="0"
                max="1000"
                step="1"
                placeholder="0"
                value={given.add[pool.pool] ?? ""}
                onInput={(event) => set({ add: { ...given.add, [pool.pool]: event.currentTarget.value } })}
              />
            </label>
          ))}
          <label class="wide">
            nodes lost, for good
            <input type="text" placeholder="train-001, train-002" spellcheck={false} {...text("lose")} />
          </label>
        </Part>
        <Part title="Other demand">
          <label>
            owners need ×
            <input type="number" min="0" max="100" step="any" {...text("demand")} />
          </label>
          <label>
            more jobs like
            <input type="text" placeholder="none" spellcheck={false} {...text("like")} />
          </label>
          <label>
            how many
            <input type="number" min="1" max="1000" step="1" {...text("count")} disabled={given.like === ""} />
          </label>
        </Part>
        <Requests value={given.requests} set={(requests) => set({ requests })} isWrong={wrong?.field === "requests"} />
        {wrong !== null && (
          <p class="problem" role="alert">
            {wrong.text}
          </p>
        )}
        <div class="row">
          <button type="submit" class="primary" disabled={busy}>
            {busy ? "Asking…" : "Run it"}
          </button>
          <p class="quiet small">
            The real engine decides, beside a control without the change. Nothing is written to the log.
          </p>
        </div>
      </form>
    </Card>
  );
}

/** The gateway's names of fields whose names differ here. */
const FIELDS: Readonly<Record<string, keyof Given>> = { add_nodes: "add", jobs: "like" };

function wrongOf(error: unknown): { field: string; text: string } {
  const text = error instanceof Error ? error.message : String(error);
  if (error instanceof Wrong) return { field: error.field, text };
  const parameter = error instanceof Problem ? (error.parameter ?? "") : "";
  const name = parameter.replace(/^change\./, "").split(/[.[]/)[0] ?? "";
  return { field: FIELDS[name] ?? name, text };
}

type TextField = "entry" | "hours" | "runs" | "settings" | "lose" | "demand" | "count" | "like";

interface RequestsOf {
  value: string;
  set: (text: string) => void;
  isWrong: boolean;
}

function Requests({ value, set, isWrong }: RequestsOf) {
  const id = useId();
  const said = value
    .split("\n")
    .filter((line) => line.trim() !== "")
    .map((line) => {
      try {
        return requestInWords(JSON.parse(line) as Record<string, unknown>);
      } catch {
        return null;
      }
    })
    .filter((one) => one !== null);
  return (
    <fieldset>
      <legend>What somebody asks for</legend>
      {said.length > 0 && (
        <ul class="tried">
          {said.map((one) => (
            <li key={one}>
              <span class="tag">tries</span> <bdi class="text">{one}</bdi>
            </li>
          ))}
        </ul>
      )}
      <details open={isWrong}>
        <summary>{value === "" ? "Add a verb" : "Change it"}, as JSON, one a line</summary>
        <label class="hidden" for={id}>
          Verbs as JSON
        </label>
        <textarea
          id={id}
          rows={3}
          spellcheck={false}
          value={value}
          placeholder={'{"verb": "node.drain", "node": "train-001", "by_s": 1800}'}
          onInput={(event) => set(event.currentTarget.value)}
        />
        <p class="quiet small">Moments (by_s, until_s) count from the entry, in seconds.</p>
      </details>
    </fieldset>
  );
}
