// What can be done to a volume or a node from the page, and what it is made of.
import type { Action, Now } from "../generated/console";

type NameOf<T> = T extends unknown ? keyof T : never;
export type ActionName = NameOf<Action>;

/** What an action is about: a volume, a node, or a volume that is to be made. */
export type Subject = { volume: string; bytes: number; owner: string | null } | { node: string; draining: boolean; maintenance: boolean } | { create: true };

/** What the dialog is open for, if it is. */
export const asked = $state<{ subject: Subject | null }>({ subject: null });

export interface Choosable {
  name: ActionName;
  text: string;
}

/** What can be done to this. */
export function choices(subject: Subject): Choosable[] {
  if ("create" in subject) return [{ name: "create_volume", text: "Create volume" }];
  if ("node" in subject) {
    return [
      { name: "drain_node", text: subject.draining ? "Stop the drain" : "Drain" },
      { name: "maintain_node", text: subject.maintenance ? "End the maintenance" : "Maintenance" },
    ];
  }
  const resize: Choosable[] = [
    { name: "resize_volume", text: "Resize" },
    { name: "limit_volume", text: "Limit" },
    { name: "move_volume", text: "Move a copy" },
    { name: "scrub_volume", text: "Scrub" },
  ];
  return subject.owner == null
    ? [{ name: "attach_volume", text: "Attach" }, ...resize, { name: "delete_volume", text: "Delete" }]
    : [...resize, { name: "attach_volume", text: "Attach at another node" }, { name: "detach_volume", text: "Detach" }, { name: "delete_volume", text: "Delete" }];
}

/** What a person has entered. A field that is empty is null. */
export interface Entered {
  name: string;
  size: number | null;
  unit: number;
  copies: number;
  stripes: number | null;
  log: number | null;
  at: string;
  tls: boolean;
  iops: number | null;
  mbps: number | null;
  from: string;
  to: string;
  force: boolean;
  confirm: string;
}

export const UNITS = [
  { value: 2 ** 20, text: "MiB" },
  { value: 2 ** 30, text: "GiB" },
  { value: 2 ** 40, text: "TiB" },
];

/** The log of a copy: MiB. */
const LOG = 256;
/** The size that a new volume is offered, if there is room: bytes. */
const SIZE = 10 * 2 ** 30;

/** A size of a new volume with so many copies for which the devices that are shown have room: at most `SIZE`, or else a power of two. */
function offered(now: Now | null, copies: number): number {
  if (!now || now.devices.length < now.devices_total) return SIZE;
  const free = new Map<string, number>();
  for (const device of now.devices.filter((one) => one.role !== "log" && one.fault == null)) {
    free.set(device.node, Math.max(free.get(device.node) ?? 0, device.bytes - device.promised));
  }
  const least = [...free.values()].sort((a, b) => b - a)[copies - 1];
  if (least == null) return SIZE;
  // A device has a part for what describes the data, and allocates whole chunks.
  const room = 0.9 * least - LOG * 2 ** 20;
  return room >= SIZE ? SIZE : 2 ** Math.max(20, Math.floor(Math.log2(Math.max(room, 1))));
}

/** What the fields begin with. */
export function entered(subject: Subject, nodes: string[], now: Now | null): Entered {
  const copies = Math.min(2, nodes.length);
  const bytes = "volume" in subject ? subject.bytes : offered("create" in subject ? now : null, copies);
  const unit = [...UNITS].reverse().find(({ value }) => bytes >= value && bytes % value === 0)?.value ?? UNITS[0].value;
  const from = ("volume" in subject && subject.owner) || nodes[0] || "";
  const to = nodes.find((node) => node !== from) ?? from;
  const numbers = { size: "volume" in subject ? null : bytes / unit, unit, copies, stripes: 1, log: LOG, iops: null, mbps: null };
  return { name: "", at: "", tls: false, from, to, force: false, confirm: "", ...numbers };
}

/** A whole number that is at least this. */
function whole(value: number | null, least: number): number | null {
  return value != null && Number.isSafeInteger(Math.round(value)) && Math.round(value) >= least ? Math.round(value) : null;
}

/** The action, or null while something is missing. */
export function action(kind: ActionName, subject: Subject, of: Entered): Action | null {
  const bytes = whole(of.size == null ? null : of.size * of.unit, 1);
  if ("node" in subject) {
    const { node, draining, maintenance } = subject;
    return kind === "maintain_node"
      ? { maintain_node: { node, stop: maintenance, force: of.force && !maintenance } }
      : { drain_node: { node, stop: draining } };
  }
  if ("create" in subject) {
    const [name, stripes, log] = [of.name.trim(), whole(of.stripes, 1), whole(of.log, 1)];
    if (!name || bytes == null || stripes == null || log == null) return null;
    return { create_volume: { name, bytes, copies: of.copies, stripes, at: of.at || null, log_bytes: log * 2 ** 20, requires_tls: of.tls } };
  }
  const { volume } = subject;
  switch (kind) {
    case "resize_volume":
      return bytes == null ? null : { resize_volume: { volume, bytes } };
    case "limit_volume": {
      const [iops, mb] = [whole(of.iops, 0), whole(of.mbps, 0)];
      return { limit_volume: { volume, limit: { iops, bytes_per_s: mb == null ? null : mb * 1e6 } } };
    }
    case "move_volume":
      return { move_volume: { volume, from: of.from, to: of.to } };
    case "attach_volume":
      return { attach_volume: { volume, node: of.at || null } };
    case "detach_volume":
      return { detach_volume: { volume, force: of.force } };
    case "delete_volume":
      return { delete_volume: { volume, confirm: of.confirm } };
    case "scrub_volume":
      return { scrub_volume: { volume } };
    default:
      return null;
  }
}
