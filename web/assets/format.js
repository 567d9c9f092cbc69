// Quantities with their units, as the page shows them.

const NONE = "–";

function known(value) {
  return value !== undefined && value !== null && Number.isFinite(value);
}

/** The share of a value in another one; undefined unless both are known. */
export function ratio(value, whole) {
  return known(value) && whole > 0 ? value / whole : undefined;
}

/** A number with three significant digits, without an exponent. */
export function number(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  const digits = size >= 100 || value === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toFixed(digits);
}

function scaled(value, units, step = 1000) {
  if (!known(value)) return NONE;
  let at = 0;
  while (Math.abs(value) >= step && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  return `${at === 0 && Math.abs(value) >= 10 ? Math.round(value) : number(value)} ${units[at]}`;
}

export const power = (watts) => scaled(watts, ["W", "kW", "MW"]);
export const energy = (wattHours) => scaled(wattHours, ["Wh", "kWh", "MWh", "GWh"]);
export const carbon = (grams) => scaled(grams, ["g", "kg", "t", "kt"]);
export const price = (perKwh, currency) => `${number(perKwh)} ${currency}/kWh`;
/** An amount of a currency. */
export function money(value, currency) {
  if (!known(value)) return NONE;
  const text = value !== 0 && Math.abs(value) < 0.0005 ? "under 0.001" : number(value).replace("-", "−");
  return `${text} ${currency}`;
}
export const watts = (value) => (known(value) ? String(Math.round(value)) : NONE);

export function percent(share, digits = 0) {
  if (!known(share)) return NONE;
  const small = digits === 0 && share !== 0 && Math.abs(share) < 0.01;
  return `${(100 * share).toFixed(small ? 1 : digits).replace("-", "−")} %`;
}

/** A relative change with its sign: `+7 %`, `−12 %`. */
export function change(share) {
  return share > 0 ? `+${percent(share)}` : percent(share);
}

/** A span in at most two units: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`. */
export function span(seconds) {
  if (!known(seconds)) return NONE;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s < 600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.round(s / 60)} min`;
  const minutes = Math.round(s / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  const hours = Math.round(minutes / 60);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A clock time; with its date if that is not today's. */
export function time(seconds, now) {
  if (!known(seconds)) return NONE;
  const at = new Date(seconds * 1000);
  const clock = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const isToday = at.toDateString() === new Date(now * 1000).toDateString();
  return isToday ? clock : `${at.toLocaleDateString([], { day: "numeric", month: "short" })} ${clock}`;
}

/** A day since the Unix epoch, UTC. */
export function day(number, short = false) {
  const options = { day: "numeric", month: "short", timeZone: "UTC", ...(short ? {} : { weekday: "short" }) };
  return new Date(number * 86400000).toLocaleDateString([], options);
}

export function count(value, singular, plural = `${singular}s`) {
  return `${known(value) ? value : NONE} ${value === 1 ? singular : plural}`;
}

/** A sum: `at least 680 W` where a part of it has no reading, `not known` where none has one. */
export function stated(text, value, isPartial) {
  if (!isPartial) return text;
  return known(value) ? `at least ${text}` : "not known";
}

export const isKnown = known;
