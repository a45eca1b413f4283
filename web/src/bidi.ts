/** Keep a name's direction of writing to itself, within a line of text; elsewhere <bdi> does. */
export function isolated(name: string): string {
  return `\u2068${name}\u2069`;
}
