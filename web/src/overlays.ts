/** Which dialog is open over the views. */
import { signal } from "@preact/signals";

export const helping = signal(false);
export const searching = signal(false);
