// The stream of messages that the page is made of: lines of JSON, here compressed and all at once.
import type { Message } from "./generated/page";

/** The messages in a page's own data: gzip in base64. Yields as they are decompressed. */
export async function* embedded(base64: string): AsyncGenerator<Message> {
  const packed = Uint8Array.from(atob(base64.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  yield* lines(stream);
}

/** The messages of a stream of bytes, a line each. */
export async function* lines(bytes: ReadableStream<Uint8Array>): AsyncGenerator<Message> {
  const reader = bytes.pipeThrough(new TextDecoderStream() as TransformStream<Uint8Array, string>).getReader();
  // A long line comes in many pieces: they are joined once, at its end.
  let pieces: string[] = [];
  for (;;) {
    const { done, value } = await reader.read();
    const [first, ...others] = (value ?? "").split("\n");
    pieces.push(first);
    for (const piece of others) {
      const line = pieces.join("");
      if (line) yield JSON.parse(line) as Message;
      pieces = [piece];
    }
    if (done) break;
  }
  const line = pieces.join("");
  if (line) yield JSON.parse(line) as Message;
}
