/** Dead letters: what could not be taken, which field of it is wrong and why, its bytes escaped. */
import type { Schemas } from "../api.ts";
import { useData } from "../data.ts";
import { bytes, moment, plural } from "../format.ts";
import { Card, Empty, Loaded, Name } from "../parts.tsx";
import { go, href, route } from "../route.ts";
import "../journal.css";

type Letter = Schemas["Letter"];
const TOPICS = ["commands", "events", "requests", "telemetry"];

export function DeadLetters() {
  const { topic, before } = route.value.query;
  const found = useData("/api/v1/dead-letters", { topic, before: topic ? before : undefined, limit: 100 });
  return (
    <Card title="Messages that could not be taken" aside={<Topic of={topic ?? ""} />}>
      <Loaded of={found}>
        {(page) =>
          page.letters.length ? (
            <>
              <ul class="letters">
                {page.letters.map((letter) => (
                  <LetterRow key={`${letter.topic} ${letter.offset}`} of={letter} />
                ))}
              </ul>
              {page.next !== null && topic !== undefined && (
                <a class="button" href={href({ query: { before: String(page.next) } })}>
                  Show earlier ones
                </a>
              )}
              {page.next === null && topic === undefined && page.letters.length >= 100 && (
                <p class="quiet">There may be earlier ones: choose a topic to go on.</p>
              )}
            </>
          ) : (
            <Empty title="No dead letters: every message was taken.">
              A message that cannot be read, or that its sender may not send, would be here with the
              field that is wrong.
            </Empty>
          )
        }
      </Loaded>
    </Card>
  );
}

function Topic({ of }: { of: string }) {
  return (
    <label class="row">
      topic
      <select
        value={of}
        onChange={(event) => go({ query: { topic: event.currentTarget.value, before: undefined } })}
      >
        <option value="">all</option>
        {TOPICS.map((one) => (
          <option key={one} value={one}>{one}</option>
        ))}
      </select>
    </label>
  );
}

function LetterRow({ of }: { of: Letter }) {
  return (
    <li class="letter">
      <p>
        <span class="tag bad">{of.field === "" ? "the message" : <bdi class="text">{of.field}</bdi>}</span>{" "}
        <bdi class="text">{of.reason}</bdi>
      </p>
      <p class="quiet small">
        {moment(of.at_s)} · <Name of={of.topic} wide /> at {of.offset} · key <Name of={of.key} wide /> ·{" "}
        {bytes(of.size)}
      </p>
      <details>
        <summary>{plural(of.size, "byte")}, escaped</summary>
        <pre class="bytes" tabIndex={0}>
          <bdi>{escaped(of.text)}</bdi>
        </pre>
      </details>
    </li>
  );
}

/** Write what does not show, or would turn the line around, as an escape. */
function escaped(text: string): string {
  return text.replace(
    /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffd]/g,
    (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
