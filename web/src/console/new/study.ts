// What the page of a new study asks of the console, and what answers are in its form.
import type { Answers, Field, FormField } from "../../generated/console";

/** The text of each answer that was entered. */
export type Entered = Partial<Record<Field, string>>;

/** The answer of a field: what was entered, or its default. */
function value(fields: FormField[], entered: Entered, field: Field): string {
  const given = entered[field]?.trim();
  if (given) return given;
  const asked = fields.find((one) => one.field === field);
  return asked?.default ?? (asked?.default_from ? value(fields, entered, asked.default_from) : "");
}

/** The fields that the study needs, as far as earlier answers say. */
export function shown(fields: FormField[], entered: Entered): FormField[] {
  return fields.filter((field) => field.shown_if.every((on) => on.is_one_of.includes(value(fields, entered, on.field))));
}

/** The answers of the fields that are shown. What was entered in others stays on the page, and is not sent. */
export function answers(fields: FormField[], entered: Entered): Answers {
  const given = shown(fields, entered).map(({ field }) => [field, entered[field]?.trim()]);
  return Object.fromEntries(given.filter(([, text]) => text)) as Answers;
}

/** What a field takes if nothing is entered. */
export function usual(fields: FormField[], entered: Entered, field: FormField): string {
  if (field.default != null) return field.default;
  return field.default_from ? value(fields, entered, field.default_from) : "";
}
