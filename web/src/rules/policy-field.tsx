/** A field for a policy: its name, and options after colons. */
import { useId } from "preact/hooks";

/** The policies that Tidegate has; a test holds this list to the registry. */
const POLICIES = [
  "tide", "fifo", "sjf", "srtf", "edf", "drf", "capacity", "tiresias", "gittins", "optimus", "afs",
  "pollux", "aryl", "deepboot", "elasticflow", "edgeflow", "themis", "gandiva", "gavel", "sia",
] as const;

interface Shown {
  value: string;
  label: string;
  onInput: (line: string) => void;
  isWrong?: boolean;
}

export function PolicyField({ value, label, onInput, isWrong = false }: Shown) {
  const list = useId();
  return (
    <label class="policy-field">
      {label}
      <input
        type="text"
        value={value}
        list={list}
        maxLength={4096}
        aria-invalid={isWrong}
        placeholder="tide:patience_s=7200"
        spellcheck={false}
        autocomplete="off"
        onInput={(event) => onInput(event.currentTarget.value)}
      />
      <datalist id={list}>
        {POLICIES.map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
    </label>
  );
}
