/** Server-sent events over `fetch`, which can carry a token and be aborted, as `EventSource` cannot. */

import { isAbort, Offline, send, type Options } from "./client";
import { EventReader, type Event } from "./eventReader";

/** A stream that breaks off is a server that does not answer any more. */
export async function* events(path: string, options: Options = {}): AsyncGenerator<Event> {
  const response = await send(path, options);
  const body = response.body;
  if (!body) return;
  const pieces = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, BufferSource>).getReader();
  const reader = new EventReader();
  try {
    for (;;) {
      const { done, value } = await pieces.read().catch((error: unknown) => {
        throw isAbort(error) ? error : new Offline();
      });
      if (done) return;
      yield* reader.push(value);
    }
  } finally {
    await pieces.cancel().catch(() => undefined);
  }
}
