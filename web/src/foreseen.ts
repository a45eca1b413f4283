/** What owners are forecast to need, for the picture of the tide: the policy's own forecast, summed. */
import type { Schemas } from "./api.ts";

export interface Foreseen {
  /** When slots begin that are later than the rows of the tide. */
  later: readonly number[];
  /** At each row, then at each later slot; null: the policy does not look there. */
  need: readonly (number | null)[];
  high: readonly (number | null)[];
}

/** Sum the forecasts of all lenders, at the moments of some rows and beyond them. */
export function foreseen(
  of: readonly Schemas["Foreseen"][],
  rows: readonly { at_s: number }[],
  slot_s: number,
  from_s: number,
): Foreseen {
  const need = new Map<number, number>();
  const high = new Map<number, number>();
  for (const lender of of) {
    for (const row of lender.rows) {
      const slot = Math.floor(row.at_s / slot_s);
      need.set(slot, (need.get(slot) ?? 0) + row.need);
      high.set(slot, (high.get(slot) ?? 0) + row.need_high);
    }
  }
  const last_s = rows.at(-1)?.at_s ?? 0;
  const later = [...need.keys()].map((slot) => slot * slot_s).filter((at_s) => at_s > last_s);
  later.sort((one, other) => one - other);
  const at = [...rows.map((row) => row.at_s), ...later];
  const told = (values: ReadonlyMap<number, number>) =>
    at.map((at_s) => (at_s < from_s ? null : (values.get(Math.floor(at_s / slot_s)) ?? null)));
  return { later, need: told(need), high: told(high) };
}
