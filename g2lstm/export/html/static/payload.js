// The payload: facts about the model, and its numbers, which they describe by type, place and length.

const TYPES = { f32: Float32Array, f16: Uint16Array, i8: Int8Array, i16: Int16Array, i32: Int32Array };

/* base64: the text of the payload. Returns the facts, and a function that gives the array that a fact describes. */
export async function openPayload(base64) {
  const text = atob(base64.replace(/\s+/g, ""));
  const packed = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) packed[at] = text.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const size = new DataView(buffer).getUint32(0, true);
  const facts = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const numbers = ({ type, at, length }) => {
    const array = new TYPES[type](buffer, 4 + size + at, length);
    return type === "f16" ? Float32Array.from(array, half) : array;
  };
  return { facts, numbers };
}

// The value of sixteen bits as a float16.
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
}
