// Tokenizers as training writes them: words between white space, characters, or byte-pair encoding over bytes.

const SPACE = "[\\t-\\r\\u0085\\p{Z}]"; // Unicode's white space, which is not what \s means here
const WORDS = new RegExp(`[^\\t-\\r\\u0085\\p{Z}]+`, "gu");
const PIECES = new RegExp(
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\t-\\r\\u0085\\p{Z}\\p{L}\\p{N}]+" +
  `|${SPACE}+(?![^\\t-\\r\\u0085\\p{Z}])|${SPACE}+`, "gu");
const AT_SPACES = / [^ ]*|[^ ]+/gu;
const UNSEEN = /(?! )[\p{C}\p{Z}]/gu;
// Scripts without spaces between words, and what stands among them.
const JOINED =
  /^[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\u3000-\u303f\uff00-\uffef\ufffd]/;
const SHORT = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

// Byte-pair encoding writes each byte as a character that can be seen.
const CHARACTERS = (() => {
  const seen = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(seen(byte) ? byte : next++));
})();
const BYTES = new Map(CHARACTERS.map((character, byte) => [character, byte]));

export class Tokenizer {
  constructor(described, numbers) {
    Object.assign(this, described);
    this.ids = new Map(this.tokens.map((token, id) => [token, id]));
    this.pieces = new Map(); // a cache
    if (this.kind !== "bpe") return;
    const merges = numbers(described.merges);
    this.ranks = new Map();
    for (let rank = 0; rank < merges.length / 2; rank += 1) {
      const [left, right] = [merges[2 * rank], merges[2 * rank + 1]];
      const merged = this.ids.get(this.tokens[left] + this.tokens[right]);
      this.ranks.set(left * this.tokens.length + right, { rank, merged });
    }
    this.ofByte = CHARACTERS.map((character) => this.ids.get(character));
  }

  /* A line in NFC, without control characters, with single spaces; as it is if the tokenizer doesn't clean. */
  clean(line) {
    if (!this.replaced.length) return line;
    const all = ([pattern, by]) => (text) => text.replace(new RegExp(pattern, "gu"), by);
    const [unseen, spaces] = this.replaced.map(all);
    return spaces(unseen(line).normalize("NFC")).replace(/^ | $/g, "");
  }

  normalised(given) {
    const line = this.clean(given);
    // Character by character, without the rules for the end of a word that toLowerCase has.
    const lower = this.lowercase ? Array.from(line, (character) => character.toLowerCase()).join("") : line;
    return this.prefix && lower ? ` ${lower}` : lower;
  }

  /* The token ids of a line, without <eos>. */
  encode(line) {
    const text = this.normalised(line);
    if (this.kind === "word") return (text.match(WORDS) ?? []).map((word) => this.ids.get(word) ?? this.unk);
    if (this.kind === "character") return Array.from(text, (character) => this.ids.get(character) ?? this.unk);
    return (text.match(this.only_spaces ? AT_SPACES : PIECES) ?? []).flatMap((piece) => this.merge(piece));
  }

  /* The words or characters of a line as this tokenizer cuts them, with their case kept. */
  words(line) {
    return this.kind === "character" ? Array.from(line) : line.match(WORDS) ?? [];
  }

  merge(piece) {
    const known = this.pieces.get(piece);
    if (known) return known;
    const ids = Array.from(new TextEncoder().encode(piece), (byte) => this.ofByte[byte]);
    for (;;) {
      let best = null;
      for (let at = 0; at + 1 < ids.length; at += 1) {
        const found = this.ranks.get(ids[at] * this.tokens.length + ids[at + 1]);
        if (found && (!best || found.rank < best.rank)) best = { ...found, at };
      }
      if (!best) break;
      ids.splice(best.at, 2, best.merged);
    }
    if (this.pieces.size > 10000) this.pieces.clear();
    this.pieces.set(piece, ids);
    return ids;
  }

  /* The text of token ids; each <eos> ends a line. */
  decode(ids) {
    const lines = [[]];
    for (const id of ids) {
      if (id === this.eos) lines.push([]);
      else lines.at(-1).push(id);
    }
    return lines.map((line) => this.text(line)).join("\n");
  }

  text(ids) {
    if (this.kind === "word") return ids.map((id) => this.tokens[id]).join(" ");
    if (this.kind === "character") return ids.map((id) => this.tokens[id]).join("");
    const text = utf8(ids.flatMap((id) => bytesOf(this.tokens[id])));
    return this.prefix && text.startsWith(" ") ? text.slice(1) : text;
  }

  /* How many bytes the last character of a text lacks after a token, if it lacked so many before; -1 if it would break. */
  missing(before, id) {
    if (this.kind !== "bpe") return 0;
    let missing = before;
    for (const byte of bytesOf(this.tokens[id])) {
      if ((byte >= 0x80 && byte < 0xC0) !== missing > 0 || byte === 0xC0 || byte === 0xC1 || byte > 0xF4) return -1;
      if (missing > 0) missing -= 1;
      else if (byte >= 0x80) missing = 1 + (byte >= 0xE0) + (byte >= 0xF0);
    }
    return missing;
  }

  /* Tokens as people can read them; if a word is several tokens, all but the first begin with ##, but not in scripts
     without spaces. */
  readable(ids) {
    return ids.map((id, place) => {
      const token = this.tokens[id];
      if (this.kind !== "bpe" || id === this.eos || id === this.unk) return token === " " ? "␣" : printable(token);
      const text = printable(utf8(bytesOf(token)).replace(/^ +| +$/g, "") || "␣");
      return token.startsWith(CHARACTERS[32]) || place === 0 || JOINED.test(text) ? text : `##${text}`;
    });
  }
}

const bytesOf = (token) => Array.from(token, (character) => BYTES.get(character));
const utf8 = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));

/* The text with what can't be seen as escapes, such as \x1b. */
export function printable(text) {
  return text.replace(UNSEEN, (character) => {
    const code = character.codePointAt(0);
    if (SHORT[character]) return SHORT[character];
    const [mark, digits] = code < 256 ? ["x", 2] : code < 65536 ? ["u", 4] : ["U", 8];
    return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
  });
}
