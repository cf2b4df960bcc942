// The packing of docs/order.md once more, in another language and another way: rows are lists of
// pieces, and the row that a rest fits into is looked for among all of them.
//
// Reads one question a line of JSON from standard input, and writes the answer as a line of JSON:
// {"lengths", "length", "cut", "marks", "first_id", "seed", "words"}: the number of rows of a group,
// and each row's pieces as [document, begin, elements]. "words" are what the key absorbs between
// the seed and PACKING: [epoch], or [DATASET, dataset, pass] in a mixture. Seeds and words are
// strings, since JSON's numbers do not hold 63 bits.

import readline from 'node:readline';

const MASK = (1n << 64n) - 1n;
const SECOND = 6n, PACKING = 18n;

function mix(z) {
  z = ((z ^ (z >> 30n)) * 0xBF58476D1CE4E5B9n) & MASK;
  z = ((z ^ (z >> 27n)) * 0x94D049BB133111EBn) & MASK;
  return z ^ (z >> 31n);
}

const absorb = (key, word) => mix(key ^ mix((word + 0x9E3779B97F4A7C15n) & MASK));
const draw = (key, counter) => mix(mix((key + counter) & MASK) ^ absorb(key, SECOND));

// Places rests, [document, begin, elements], one after the other; returns rows of pieces.
function place(rests, length, cut) {
  const rows = [];
  // When each row came to the room that it has.
  let now = 0;
  for (let [document, begin, size] of rests) {
    while (size > 0) {
      let best = null;
      for (const row of rows) {
        if (row.room < size) continue;
        if (!best || row.room < best.room || (row.room === best.room && row.since > best.since)) best = row;
      }
      if (!best && cut > 0) {
        for (const row of rows) {
          if (row.room < cut) continue;
          if (!best || row.room > best.room || (row.room === best.room && row.since > best.since)) best = row;
        }
      }
      if (!best) {
        best = { room: length, since: now, pieces: [] };
        rows.push(best);
      }
      const taken = Math.min(size, best.room);
      best.pieces.push([document, begin, taken]);
      best.room -= taken;
      best.since = ++now;
      begin += taken;
      size -= taken;
    }
  }
  return rows.map((row) => row.pieces);
}

// f(n): log2 in units of 2^-16, with straight lines between powers of two.
function logarithm(n) {
  const l = Math.floor(Math.log2(n));
  return 65536n * BigInt(l - 1) + ((65536n * BigInt(n)) >> BigInt(l));
}

function falling(rests, key) {
  const keyed = rests.map((rest, at) => [key(rest), at, rest]);
  keyed.sort((a, b) => (a[0] < b[0] ? 1 : a[0] > b[0] ? -1 : a[1] - b[1]));
  return keyed.map((each) => each[2]);
}

function answer({ lengths, length, cut, marks, first_id: firstId, seed, words }) {
  const rows = [], rests = [];
  lengths.forEach((own, document) => {
    const whole = own + marks;
    const filled = whole - (whole % length);
    for (let begin = 0; begin < filled; begin += length) rows.push([[document, begin, length]]);
    if (whole > filled) rests.push([document, filled, whole - filled]);
  });
  const plain = place(falling(rests, (rest) => rest[2]), length, cut);
  const pieceCount = (placed) => placed.reduce((sum, row) => sum + row.length, 0);
  const c = plain.length;
  const count = c ? Math.min(c + 1 + Math.floor(c / 256), pieceCount(plain)) : 0;
  const key = [BigInt(seed), ...words.map(BigInt), PACKING].reduce(absorb, 0n);
  const jittered = place(
    falling(rests, ([document, , size]) =>
      logarithm(size) + ((94548n * (draw(key, BigInt(firstId + document)) >> 32n)) >> 32n)),
    length,
    cut,
  );
  const fits = jittered.length <= count && pieceCount(jittered) >= count;
  const placed = fits ? jittered : plain;
  while (placed.length < count) {
    let donor = 0;
    placed.forEach((row, at) => { if (row.length > placed[donor].length) donor = at; });
    const given = placed[donor].filter((_, at) => at % 2 === 1);
    placed[donor] = placed[donor].filter((_, at) => at % 2 === 0);
    placed.push(given);
  }
  return { row_count: rows.length + count, rows: [...rows, ...placed] };
}

for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  if (line.trim()) process.stdout.write(`${JSON.stringify(answer(JSON.parse(line)))}\n`);
}
