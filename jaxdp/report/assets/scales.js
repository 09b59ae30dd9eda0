"use strict";
// From values to pixels, and the round numbers to write along an axis.

const WIDTH_OF_A_CHARACTER = 6.8; // of the 12 px type along axes, on the generous side

function textWidth(text) {
  return text.length * WIDTH_OF_A_CHARACTER;
}

/** Round steps (1, 2 or 5 times a power of ten) that cover low to high in about `count` parts. */
function roundTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) ticks.push(index * step);
  return ticks;
}

/** Powers of ten, or of ten with 2 and 5 between them where there are few. */
function logTicks(low, high) {
  const ticks = [];
  const decades = Math.log10(high / low);
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of decades > 3 ? [1] : [1, 2, 5]) ticks.push(factor * 10 ** power);
  }
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

/** The ticks whose labels, `size(tick)` pixels long, leave air between them. */
function withoutOverlaps(ticks, place, size) {
  const kept = [];
  for (const tick of ticks) {
    const last = kept.at(-1);
    if (last === undefined || Math.abs(place(tick) - place(last)) >= (size(tick) + size(last)) / 2 + 6) kept.push(tick);
  }
  return kept;
}

/** Values' range as an axis shows it: with air, from zero where asked, and never empty. */
function domainOf(values, logarithmic, fromZero) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (logarithmic) {
    return low === high ? [low / 2, high * 2] : [low, high];
  }
  if (fromZero) low = Math.min(0, low);
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
  const air = (high - low) * 0.06;
  return [fromZero && low === 0 ? 0 : low - air, high + air];
}

function scaleOf([low, high], [from, to], logarithmic) {
  const of = logarithmic ? Math.log : (value) => value;
  return (value) => from + ((of(value) - of(low)) / (of(high) - of(low))) * (to - from);
}

/** A number along an axis: short, with thousands as k and M. */
function tickText(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e9) return `${trim(value / 1e9)}G`;
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  if (size < 1e-4) return value.toExponential(0);
  return trim(value);
}

function trim(value) {
  return String(Number(value.toPrecision(4)));
}

/** A number to read: four digits that count, thousands apart. */
function valueText(value) {
  if (value === null || value === undefined) return "—";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : trim(value);
}
