/** Light or dark: as the system says, unless the reader chose. */
import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "tidegate-theme";

function stored(): Theme {
  try {
    const found = localStorage.getItem(KEY);
    return found === "light" || found === "dark" ? found : "system";
  } catch {
    return "system";
  }
}

export const theme = signal<Theme>(stored());
const dark = matchMedia("(prefers-color-scheme: dark)");
/** What is in force; canvases draw anew when it changes. */
export const scheme = signal<"light" | "dark">("light");

export function applyTheme(): void {
  const wanted = theme.value;
  scheme.value = wanted === "system" ? (dark.matches ? "dark" : "light") : wanted;
  document.documentElement.dataset["theme"] = scheme.value;
}

dark.addEventListener("change", applyTheme);

export function switchTheme(): void {
  theme.value = scheme.value === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
  applyTheme();
}

/** A colour of the palette in force, for canvases: colour("--lent"). */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
