/** The form of a job: what most people need, and a file for everything else. */
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { type Schemas, get } from "../api.ts";
import { isolated } from "../bidi.ts";
import { Card, Name, Part } from "../parts.tsx";
import { go, route } from "../route.ts";
import { type Args, ask, post } from "../verbs.tsx";
import { EMPTY, type Given, LONGEST, NO_MODEL, specOf, tooLong } from "./given.ts";
import { type Field, Wrong, wrongOf } from "./wrong.ts";

/** What stands in the file, where it says something that a field leaves out. */
const FROM_FILE = "as the file says";

export function SubmitForm({ who, closed }: { who: Schemas["Me"]; closed: string | null }) {
  const [given, setGiven] = useState<Given>(EMPTY);
  const [wrong, setWrong] = useState<Wrong | null>(null);
  const [busy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const set = (part: Partial<Given>): void => setGiven((was) => ({ ...was, ...part }));
  useEffect(() => {
    if (wrong !== null) form.current?.querySelector<HTMLElement>("[aria-invalid]")?.focus();
  }, [wrong]);

  async function send(event: Event): Promise<void> {
    event.preventDefault();
    setWrong(null);
    setBusy(true);
    try {
      const { now_s } = await get("/api/v1/overview", { cell: route.value.cell });
      const spec = await specOf(given, who.role === "tenant" ? who.tenant : null, now_s);
      const args: Args = { verb: "job.submit", spec };
      const { note } = await post(args, "", { dryRun: true });
      const job = String(spec["job"]);
      ask({
        title: "Submit this job",
        about: `It would be taken.${note ? ` ${note}` : ""} ${isolated(job)} asks for ${sizes(spec)}.`,
        requests: [{ name: job, args }],
        tried: true,
        then: () => go({ view: "jobs", id: job }),
      });
    } catch (error) {
      setWrong(wrongOf(error, given));
    } finally {
      setBusy(false);
    }
  }

  const filed = given.file.trim() !== "";
  /** A field's input: how it is kept, and what is wrong with it. */
  const bound = (field: Field) => ({
    value: given[field],
    onInput: (event: { currentTarget: { value: string } }) => set({ [field]: event.currentTarget.value }),
    ...(wrong?.field === field ? { "aria-invalid": "true" as const, "aria-errormessage": errorId(field) } : {}),
  });
  const usual = (text: string): string => (filed ? FROM_FILE : text);
  const told = (field: Field) => (wrong?.field === field ? <Told field={field} text={wrong.message} /> : null);
  return (
    <Card title="Submit a job">
      {closed !== null && <p class="problem">Nothing can be asked here: {closed}.</p>}
      <form ref={form} class="submit-form" noValidate onSubmit={(event) => void send(event)}>
        <fieldset class="in-parts" disabled={closed !== null}>
          <Part title="What it is, and how urgent">
            <Labelled title="name" error={told("job")}>
              <input type="text" spellcheck={false} placeholder={usual("made up")} {...bound("job")} />
            </Labelled>
            {who.role === "tenant" ? (
              <p class="small">
                <span class="quiet">tenant</span>
                <br />
                <Name of={who.tenant ?? ""} />
              </p>
            ) : (
              <Labelled title="tenant" error={told("tenant")}>
                <input type="text" spellcheck={false} placeholder={usual(who.tenant ?? "operator")} {...bound("tenant")} />
              </Labelled>
            )}
            <Labelled title="model" error={told("model")}>
              <input type="text" spellcheck={false} placeholder={usual(NO_MODEL)} {...bound("model")} />
            </Labelled>
            <Labelled title="done within" error={told("deadline")}>
              <input type="text" placeholder={usual("such as 2h, or none")} {...bound("deadline")} />
            </Labelled>
            <Labelled title="priority" error={told("priority")}>
              <input type="number" min="-1000" max="1000" step="1" placeholder={filed ? "file" : "0"} {...bound("priority")} />
            </Labelled>
            <label class="check">
              <input
                type="checkbox"
                checked={given.edge === "no"}
                onChange={(event) => set({ edge: event.currentTarget.checked ? "no" : "" })}
              />
              not on edge servers
            </label>
          </Part>
          <Part title="How large, and how long">
            <Labelled title="GPUs at least" error={told("least")}>
              <input type="number" min="1" step="1" placeholder={filed ? "file" : "1"} {...bound("least")} />
            </Labelled>
            <Labelled title="GPUs at most" error={told("most")}>
              <input type="number" min="1" step="1" placeholder={filed ? "file" : "1"} {...bound("most")} />
            </Labelled>
            <Labelled title="steps in all" error={told("steps")}>
              <input type="number" min="1" step="1" placeholder={filed ? "file" : "until it ends"} {...bound("steps")} />
            </Labelled>
            <Labelled title="samples a step" error={told("batch")}>
              <input type="number" min="0" step="any" placeholder={filed ? "file" : "1"} {...bound("batch")} />
            </Labelled>
            <Labelled title="samples a second, by GPUs" wide error={told("rates")}>
              <input type="text" spellcheck={false} placeholder={usual("such as 1=300, 4=1000; measured if left out")} {...bound("rates")} />
            </Labelled>
          </Part>
          <Part title="What its workers run">
            <Labelled title="command, a word a line" wide error={told("command")}>
              <textarea rows={4} spellcheck={false} placeholder={usual("python3\ntrain.py\n--steps\n200")} {...bound("command")} />
            </Labelled>
            <Labelled title="in the folder, on the agent’s machine" wide error={told("workdir")}>
              <input type="text" spellcheck={false} placeholder={usual("a fresh one")} {...bound("workdir")} />
            </Labelled>
          </Part>
          <Part title="Everything else">
            <FilePart
              text={given.file}
              set={(file) => set({ file })}
              refuse={() => setWrong(tooLong())}
              input={bound("file")}
              error={told("file")}
            />
          </Part>
          {wrong !== null && wrong.field === null && (
            <p class="problem" role="alert">
              {wrong.message}
            </p>
          )}
          <div class="row">
            <button type="submit" class="primary" disabled={busy}>
              {busy ? "Asking…" : "Submit…"}
            </button>
            <p class="quiet small">The scheduler is asked first whether it would take it; nothing is written until you confirm.</p>
          </div>
        </fieldset>
      </form>
    </Card>
  );
}

function sizes(spec: Readonly<Record<string, unknown>>): string {
  const [least, most] = [String(spec["gpus_min"]), String(spec["gpus_max"])];
  return least === most ? (least === "1" ? "1 GPU" : `${least} GPUs`) : `${least} to ${most} GPUs`;
}

const errorId = (field: Field): string => `wrong-${field}`;

function Told({ field, text }: { field: Field; text: string }) {
  return (
    <span class="wrong text" id={errorId(field)} role="alert">
      {text}
    </span>
  );
}

function Labelled(props: { title: string; wide?: boolean; error: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class={props.wide ? "field wide" : "field"}>
      <label>
        {props.title}
        {props.children}
      </label>
      {props.error}
    </div>
  );
}

interface FileOf {
  text: string;
  set: (text: string) => void;
  /** A file that is too long to be looked at. */
  refuse: () => void;
  input: object;
  error: ComponentChildren;
}

function FilePart({ text, set, refuse, input, error }: FileOf) {
  const id = useId();
  async function take(files: FileList | null): Promise<void> {
    const file = files?.[0];
    if (file !== undefined && file.size > LONGEST) refuse();
    else if (file !== undefined) set(await file.text());
  }
  return (
    <div class="field wide">
      <label for={id}>the file of a job, in YAML or JSON; what is said above counts before it</label>
      <textarea
        id={id}
        rows={5}
        spellcheck={false}
        placeholder={"start_cost_s: 2\nprogram: {saves: on_signal}"}
        {...input}
      />
      {error}
      <div class="row">
        <label class="row">
          from a file
          <input
            type="file"
            accept=".yaml,.yml,.json"
            onChange={(event) => {
              void take(event.currentTarget.files);
              event.currentTarget.value = "";
            }}
          />
        </label>
        {text !== "" && (
          <button type="button" onClick={() => set("")}>
            Clear
          </button>
        )}
      </div>
    </div>
  );
}
