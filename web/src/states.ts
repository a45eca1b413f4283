/** The words that the scheduler has for what jobs and nodes are doing. */
import type { Schemas } from "./api.ts";

export const LIVING = ["queued", "starting", "running", "scaling", "checkpointing", "stopping", "migrating"];
export const ENDED = ["completed", "failed", "cancelled"];
/** On GPUs, or on the way there or off them. */
export const MOVING = ["starting", "scaling", "checkpointing", "stopping", "migrating"];

export type JobRow = Schemas["JobRow"];

export function ended(state: string): boolean {
  return ENDED.includes(state);
}
