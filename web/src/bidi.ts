/** Keep a name's direction of writing to itself, within a line of text; elsewhere <bdi> does. */
export function isolated(name: string): string {
  return `\u2068${name}\u2069`;
}

/** A name as far as a line of text has room for it. */
export function shortened(name: string, most = 80): string {
  const letters = [...name];
  return isolated(letters.length > most ? `${letters.slice(0, most).join("")}…` : name);
}
